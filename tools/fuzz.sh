#!/usr/bin/env bash
# fuzz.sh BUILD_DIR SECONDS: runs every fuzz_* program of the build for that long, starting from the
# inputs in tests/fuzz/corpus/NAME. Ends with an error, and says how to play it again, when one finds
# something.
#
# With FUZZ_RUNS=N in the environment it plays N inputs instead (of the quick programs 20 N), the same
# ones each time the same sources are built: CI must not refuse a change by chance, for a defect that
# was there before. Without it each run looks for inputs nobody has tried.
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
# Addresses find their way into the choice of inputs: through comparisons, and through coverage.
same_addresses=()
if [ -n "${FUZZ_RUNS:-}" ]; then
  if setarch -R true 2>/dev/null; then
    same_addresses=(setarch -R)
  else
    echo "fuzz: addresses cannot be kept the same here: another time other inputs may be played" >&2
  fi
fi

failed=0
for program in "${programs[@]}"; do
  name=$(basename "$program")
  seeds=("$root/tests/fuzz/corpus/$name"/*) # in the same order everywhere
  if [ -n "${FUZZ_RUNS:-}" ]; then
    runs=$FUZZ_RUNS
    [ "$name" = fuzz_core ] || runs=$((20 * runs)) # an input of fuzz_core is a scheduler's whole life
    what=(-seed=1 -runs="$runs" -use_cmp=0)
    [ ${#seeds[@]} -eq 0 ] || what+=(-seed_inputs="$(IFS=, && echo "${seeds[*]}")")
  else
    learnt=$build/corpus/$name # what this machine has learnt; the committed inputs stay as they are
    mkdir -p "$learnt"
    what=("$learnt" -max_total_time="$seconds")
    [ ${#seeds[@]} -eq 0 ] || what+=("$root/tests/fuzz/corpus/$name")
  fi
  log=$findings/$name.log
  started=$SECONDS
  if "${same_addresses[@]}" "$program" "${what[@]}" -timeout=10 -rss_limit_mb=2048 -max_len=2000 \
    -artifact_prefix="$findings/$name-" -print_final_stats=1 >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz: $name: $runs inputs in $((SECONDS - started))s, nothing found"
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
