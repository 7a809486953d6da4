#!/usr/bin/env bash
# fuzz.sh BUILD_DIR SECONDS: runs every fuzz_* program of the build for that long, starting from the
# inputs in tests/fuzz/corpus/NAME. Ends with an error, and says how to play it again, when one finds
# something.
set -euo pipefail
if [ $# -ne 2 ]; then
  echo "usage: tools/fuzz.sh BUILD_DIR SECONDS" >&2
  exit 2
fi
build=$1
seconds=$2
root=$(cd "$(dirname "$0")/.." && pwd)
findings=$build/findings
mkdir -p "$findings"

shopt -s nullglob
programs=("$build"/bin/fuzz_*)
if [ ${#programs[@]} -eq 0 ]; then
  echo "fuzz: no fuzz_* program in $build/bin (configure with --preset fuzz)" >&2
  exit 2
fi
failed=0
for program in "${programs[@]}"; do
  name=$(basename "$program")
  learnt=$build/corpus/$name # what this machine has learnt; the committed inputs stay as they are
  seeds=$root/tests/fuzz/corpus/$name
  mkdir -p "$learnt"
  [ -d "$seeds" ] || seeds=
  log=$findings/$name.log
  if "$program" "$learnt" ${seeds:+"$seeds"} -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -max_len=2000 -artifact_prefix="$findings/$name-" -print_final_stats=1 >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz: $name: $runs inputs in ${seconds}s, nothing found"
  else
    failed=1
    tail -n 60 "$log"
    echo "fuzz: $name FAILED; the whole story is in $log"
    for input in "$findings/$name"-*; do
      echo "fuzz: play it again with: $program $input"
    done
  fi
done
exit $failed
