#!/usr/bin/env bash
# The part of the demo about memory: demo_memory.sh NVSHARE COUNT SIZE, so many jobs of that size (MiB),
# which do not fit the GPU together. Each changes all of its memory again and again, and looks at the
# end whether every word of it is as it should be.
set -euo pipefail
nvshare=${1:?usage: demo_memory.sh NVSHARE COUNT SIZE}
count=$2
size=$3
job=$(dirname "$nvshare")/gpu-job
folder=$(mktemp -d)
# A scheduler of its own: one that gives little time, so that there is something to see.
export NVSHARE_RUN_DIR=$folder/run NVSHARE_QUANTUM_MIN=600ms NVSHARE_QUANTUM_MULTIPLIER=2
jobs=()
trap 'for pid in "${jobs[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done; wait; rm -rf "$folder"' EXIT

for i in $(seq "$count"); do
  printf '$ nvshare run --name job%s -- gpu-job --pattern train --memory %sMi &\n' "$i" "$size"
  "$nvshare" run --name "job$i" -- "$job" --pattern train --memory "${size}Mi" \
    --piece "$((size / 16))Mi" --queue 2 --check --seconds 9 >"$folder/$i" 2>&1 &
  jobs+=($!)
done
echo
for _ in 1 2 3; do
  sleep 2.3  # turns go round in about three
  "$nvshare" status | sed -n '/^GPU/,$p' || true
  echo
done
moved=$("$nvshare" status --json | sed -n 's/^ *"\(out\|in\|copied\)": \([0-9]*\),*$/\1 \2/p' | head -n 3 |
  awk '{ printf "%s%s %.1f GiB", (NR > 1 ? ", " : ""), $1, $2 / 2^30 }')
printf 'Moved so far: %s.\n' "$moved"
for i in $(seq "$count"); do
  if wait "${jobs[$((i - 1))]}"; then
    printf 'job%s: %s\n' "$i" "all of its memory is as it should be"
  else
    printf 'job%s: %s\n' "$i" "$(tail -n 1 "$folder/$i")"
  fi
done
jobs=()
