#!/usr/bin/env bash
# Installs what the build needs and the machine lacks (Debian 12). Nothing already there is touched.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config git
  libfmt-dev libspdlog-dev nlohmann-json3-dev libtomlplusplus-dev libmicrohttpd-dev
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev
)
if [ "${1:-}" = "--ci" ]; then
  packages+=(clang-19 libclang-rt-19-dev clang-format-14 ccache)
  packages+=(python3-jsonschema python3-yaml) # tests/openapi
  # Another Node than Debian's has its own npm, and the two packages exclude each other.
  command -v npm >/dev/null || packages+=(nodejs npm)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: this machine has no apt-get; install the counterparts of: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: run this as root once, or install sudo; missing: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
