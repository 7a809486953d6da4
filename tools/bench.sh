#!/usr/bin/env bash
# bench.sh BUILD_DIR [--record]: runs the benchmarks that have a limit to keep, says one line for each
# limit and fails when one is missed. --record writes the results to bench/results.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: tools/bench.sh BUILD_DIR [--record]" >&2
  exit 2
fi
program=$1/bin/core_bench
root=$(cd "$(dirname "$0")/.." && pwd)
if [ ! -x "$program" ]; then
  echo "bench: $program is not built (Google Benchmark: libbenchmark-dev)" >&2
  exit 2
fi
out=$(mktemp)
log=$(mktemp)
trap 'rm -f "$out" "$log"' EXIT
status=0
"$program" --check --benchmark_out="$out" --benchmark_out_format=json >"$log" 2>&1 || status=$?
grep -aE '(ok    |MISSED)  ' "$log" | sed 's/^.*\(ok    \|MISSED\)/\1/' || cat "$log"
if [ "${2:-}" = "--record" ]; then
  mkdir -p "$root/bench/results"
  # Where it ran is nobody's business; what it ran on is kept.
  sed -e '/"host_name"/d' -e '/"executable"/d' "$out" >"$root/bench/results/core.json"
  echo "bench: written to bench/results/core.json"
fi
exit $status
