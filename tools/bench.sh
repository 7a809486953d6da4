#!/usr/bin/env bash
# bench.sh BUILD_DIR [--record]: runs the benchmarks that have a limit to keep, says one line for each
# limit and fails when one is missed. --record writes the results to bench/results.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: tools/bench.sh BUILD_DIR [--record]" >&2
  exit 2
fi
build=$1
record=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
for program in core_bench handover_bench lease_bench; do
  if [ ! -x "$build/bin/$program" ]; then
    echo "bench: $build/bin/$program is not built (Google Benchmark: libbenchmark-dev)" >&2
    exit 2
  fi
done
out=$(mktemp)
log=$(mktemp)
trap 'rm -f "$out" "$log"' EXIT
mkdir -p "$root/bench/results"
status=0

"$build/bin/core_bench" --check --benchmark_out="$out" --benchmark_out_format=json >"$log" 2>&1 || status=1
grep -aE '(ok    |MISSED)  ' "$log" | sed 's/^.*\(ok    \|MISSED\)/\1/' || cat "$log"
if [ "$record" = "--record" ]; then
  # Where it ran is nobody's business; what it ran on is kept.
  sed -e '/"host_name"/d' -e '/"executable"/d' "$out" >"$root/bench/results/core.json"
  echo "bench: written to bench/results/core.json"
fi

"$build/bin/handover_bench" "$build" --check ${record:+--out "$root/bench/results/handover.json"} || status=1
"$build/bin/lease_bench" "$build" --check ${record:+--out "$root/bench/results/lease.json"} || status=1

if command -v valgrind >/dev/null; then
  "$root/bench/launch_overhead.sh" "$build" ${record:+"$record"} || status=1
else
  echo "bench: without valgrind the instructions of a launch are not counted"
fi
exit $status
