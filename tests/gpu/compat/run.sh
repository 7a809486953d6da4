#!/usr/bin/env bash
# run.sh BUILD_DIR OUT [SECTION...]: real programs on a real card, unshared, under `nvshare run`, and
# two at a time; see README.md. Writes OUT/compat.json and OUT/compat.md. Ends with 1 when a result
# differs, a program fails or an overhead is above its limit.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: tests/gpu/compat/run.sh BUILD_DIR OUT [view] [torch] [jax] [cupy] [cuda] [overhead]" >&2
  exit 2
fi
for needed in "$1/bin/nvshare" "$1/bin/nvshare-scheduler" "$1/bin/gpu-job" "$1/lib/libnvshare.so"; do
  if [ ! -e "$needed" ]; then
    echo "compat: $needed is missing: build nvshare first" >&2
    exit 2
  fi
done
exec timeout --kill-after=10 345 python3 "$(dirname "$0")/compat.py" "$@"
