#!/usr/bin/env bash
# launch_overhead.sh BUILD_DIR [--record]: how many instructions the library adds to a launch that is
# let through, counted by callgrind on the software GPU. Fails above 60. --record writes the result to
# bench/results/launch_overhead.json.
#
# The same program does N and 2N launches; what it costs more is what N launches cost. Counted are
# the instructions of libnvshare.so in the launching thread, and of whatever it calls but the driver,
# which the program would have called itself. The program is alone, so nothing is metered; what metering costs
# depends on time, which callgrind stretches.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: bench/launch_overhead.sh BUILD_DIR [--record]" >&2
  exit 2
fi
limit=60
launches=10000
build=$(realpath "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
if ! command -v valgrind >/dev/null; then
  echo "launch_overhead: valgrind is missing: install it" >&2
  exit 2
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export NVSHARE_RUN_DIR=$folder/run LD_LIBRARY_PATH=$build/lib/softgpu
export NVSHARE_SOFTGPU_CARD=launch-overhead-$$

# "TOTAL ADDED" of a callgrind file of one thread: its instructions, and those that the library adds.
count='
  /^ob=/ { mine = /libnvshare\.so/; next }
  /^cob=/ { callee = $0; next }
  /^calls=/ {
    getline
    if (mine && callee != "" && callee !~ /libnvshare\.so|libcuda\.so/) added += $2
    callee = ""
    next
  }
  mine && /^[+*0-9-]/ && NF == 2 { added += $2 }
  /^summary:/ { total = $2 }
  END { printf "%d %d\n", total, added }'

# What the library adds to so many launches, in the busiest thread, which is the one that launches.
# The program waits once, at the end, so that it does nothing else.
added() { # LAUNCHES
  "$build/bin/nvshare" run -- valgrind --tool=callgrind --separate-threads=yes --compress-strings=no \
    --compress-pos=no --callgrind-out-file="$folder/out.$1" --quiet \
    "$build/bin/gpu-job" --launches "$1" --kernel 0ns --queue "$1" --quiet >"$folder/log" 2>&1 ||
    { cat "$folder/log" >&2; exit 1; }
  for file in "$folder/out.$1"-*; do awk "$count" "$file"; done | sort -n | tail -n 1 | cut -d' ' -f2
}

few=$(added "$launches")
many=$(added "$((2 * launches))")
free=$(awk -v few="$few" -v many="$many" -v n="$launches" 'BEGIN { printf "%.1f", (many - few) / n }')
verdict=$(awk -v free="$free" -v limit="$limit" 'BEGIN { print (free > 0 && free <= limit) ? "ok    " : "MISSED" }')
echo "$verdict  a launch that is let through costs $free instructions more (at most $limit)"
if [ "${2:-}" = "--record" ]; then
  cat >"$root/bench/results/launch_overhead.json" <<JSON
{
  "command": "bench/launch_overhead.sh build/dev --record",
  "what": "instructions that libnvshare.so adds to a launch, by callgrind on the software GPU",
  "launches": $launches,
  "added_instructions_per_launch": $free,
  "limit": $limit
}
JSON
  echo "launch_overhead: written to bench/results/launch_overhead.json"
fi
[ "$verdict" = "ok    " ]
