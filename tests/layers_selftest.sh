#!/usr/bin/env bash
# layers_selftest.sh ROOT: layers.sh must find each of these, put into a copy of the pure layers.
set -euo pipefail
root=${1:?usage: layers_selftest.sh ROOT}
check=$root/tests/layers.sh
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
missed=0

fresh() {
  rm -rf "$copy/src"
  mkdir -p "$copy/src"
  cp -r "$root/src/core" "$root/src/base" "$copy/src/"
}
# must_find FILE LINE: with that line in that file the check fails.
must_find() {
  fresh
  echo "$2" >>"$copy/src/$1"
  if "$check" "$copy" >/dev/null; then
    echo "not found: '$2' in src/$1"
    missed=1
  fi
}

fresh
"$check" "$copy" # as it is, it is clean
must_find core/gpu.cpp '#include <thread>'
must_find core/gpu.h '#include <mutex>'
must_find core/gpu.cpp '#include <sys/socket.h>'
must_find core/gpu.cpp '#include <unistd.h>'
must_find base/units.cpp '#include <unistd.h>'
must_find core/core.cpp '#include <spdlog/spdlog.h>'
must_find core/core.cpp '#include <iostream>'
must_find base/units.cpp '#include <fstream>'
must_find core/core.cpp 'auto t = std::chrono::steady_clock::now();'
must_find base/units.cpp 'auto t = std::chrono::system_clock::now();'
must_find core/config.cpp '#include <nlohmann/json.hpp>'
must_find core/config.cpp '#include <toml++/toml.h>'
must_find core/gpu.cpp '#include "sim/simulator.h"'
must_find core/gpu.cpp '#include "base/unique_fd.h"'
must_find base/units.h '#include "core/ids.h"'
fresh
sed -i 's/LINK nvshare_base/LINK nvshare_base spdlog::spdlog/' "$copy/src/core/CMakeLists.txt"
if "$check" "$copy" >/dev/null; then
  echo "not found: a library that core links"
  missed=1
fi
exit $missed
