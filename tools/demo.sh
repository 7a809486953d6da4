#!/usr/bin/env bash
# Shows the product at work in less than a minute: demo.sh NVSHARE (the program's path). Uses this
# machine's GPU, or the software GPU where there is none (or where NVSHARE_DEMO=softgpu says so).
set -euo pipefail

nvshare=$(realpath "${1:?usage: demo.sh NVSHARE}")
job=$(dirname "$nvshare")/gpu-job
if [ ! -x "$nvshare" ] || [ ! -x "$job" ]; then
  echo "demo: $nvshare and gpu-job beside it are needed: run make build" >&2
  exit 2
fi

heading() { printf '\n=== %s\n\n' "$1"; }
show() { # what is typed, and what comes of it
  printf '$ nvshare %s\n' "$*"
  "$nvshare" "$@" || true
}

if [ -z "${NVSHARE_DEMO_INSIDE:-}" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  export NVSHARE_DEMO_INSIDE=$folder NVSHARE_RUN_DIR=$folder/run
  if [ "${NVSHARE_DEMO:-}" != softgpu ] && nvidia-smi -L >/dev/null 2>&1; then
    printf 'On %s.\n' "$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0)"
    "$0" "$nvshare"
    heading "Two programs, each with more than half of the GPU's memory, take turns on it"
    total=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits -i 0)
    "$(dirname "$0")/demo_memory.sh" "$nvshare" 2 "$((total * 6 / 10))"
  else
    echo "On the software GPU: this machine has no NVIDIA GPU, or was told to do without."
    "$nvshare" softgpu --card "demo-$$" --memory 16Gi -- "$0" "$nvshare"
    heading "Three programs with twice the memory of a (small) GPU take turns on it"
    small=(NVSHARE_RESERVE_BASE=8Mi NVSHARE_RESERVE_PER_PROCESS=4Mi NVSHARE_RESERVE_PERCENT=1)
    printf '(with %s: what is kept free is made for larger cards)\n' "${small[*]}"
    env "${small[@]}" "$nvshare" softgpu --card "demo-memory-$$" --memory 512Mi -- \
      "$(dirname "$0")/demo_memory.sh" "$nvshare" 3 340
  fi
  heading "Your turn"
  printf '%s\n' "$1 run --cores 40 --mem 4Gi -- python train.py    # on a machine with a GPU" \
    "$1 top" \
    "tools/demo_sim.sh $1    # what would happen if: the simulator"
  exit
fi

folder=$NVSHARE_DEMO_INSIDE
jobs=()
leases=()
end_jobs() { # they pass it on to their programs, which end cleanly
  for pid in "${jobs[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  wait
}
trap end_jobs EXIT

start() { # NAME CORES MEMORY-LIMIT MEMORY: a program that would use the whole GPU if it could
  printf '$ nvshare run --name %s --cores %s --mem %s -- gpu-job --memory %s &\n' "$@"
  "$nvshare" run --name "$1" --cores "$2" --mem "$3" -- "$job" --memory "$4" --queue 4 \
    --seconds 120 --progress 100ms >"$folder/$1" 2>&1 &
  jobs+=($!)
}

# Kernels (of a millisecond) that a job has done so far, and when it said so in nanoseconds.
now_of() { sed -n 's/^progress at=\([0-9]*\) kernels=\([0-9]*\)$/\2 \1/p' "$folder/$1" | tail -n 1; }
share_between() { # "KERNELS TIME" "KERNELS TIME": percent of the GPU's time
  awk -v before="$1" -v after="$2" 'BEGIN {
    split(before, b); split(after, a)
    if (a[2] > b[2]) printf "%.1f", 1e8 * (a[1] - b[1]) / (a[2] - b[2]); else printf "?" }'
}

names=(train eval notebook)
declare -A first middle again last
mark() { # ARRAY: how far everybody is
  local -n into=$1
  for name in "${names[@]}"; do into[$name]=$(now_of "$name"); done
}
live() { # SECONDS: the table, again and again
  for _ in $(seq "$(($1 / 3))"); do
    sleep 3
    "$nvshare" status | sed -n '/^NAME/,$p'
    echo
  done
}

heading "Three programs, each of which would use the whole GPU"
start train 50 8Gi 6Gi
start eval 20 4Gi 2Gi
start notebook 10 2Gi 1Gi
for name in "${names[@]}"; do
  for _ in $(seq 100); do [ -n "$(now_of "$name")" ] && break || sleep 0.1; done
done
sleep 1

heading "Each gets what it may have (GETS: in the last seconds); a fifth of the GPU is kept free"
mark first
live 9
mark middle

heading "Why does the notebook not go faster?"
# It is in the middle of something most of the time; what it then waits for is the answer.
for _ in $(seq 50); do
  why=$("$nvshare" why notebook)
  [[ $why == *%* ]] && break || sleep 0.02
done
printf '$ nvshare why notebook\n%s\n' "$why"

heading "A limit is changed while the program runs"
show limit eval --cores 40
sleep 1
mark again
live 9
mark last

heading "Who wants more memory than it may have gets an error; nobody else notices"
printf '$ nvshare run --name greedy --mem 1Gi -- gpu-job --memory 2Gi\n'
"$nvshare" run --name greedy --mem 1Gi -- "$job" --memory 2Gi --seconds 1 || true

heading "Services ask for the GPU: speech is let in, repair is skipped while the GPU is busy"
sleep 1.5 # until the usage is measured anew
leased() { # what is typed, and what comes of it
  printf '$ nvshare lease run %s\n' "$*"
  "$nvshare" lease run "$@" || true
}
leased --class ASR -- echo "speech: let in, beside jobs of lower priority"
leased --class SEMANTIC_REPAIR -- echo "repair: let in"

heading "With every slot taken, translation falls back to the CPU"
for _ in 1 2 3 4; do
  "$nvshare" lease run --class ASR -- sleep 20 &
  leases+=($!)
done
for _ in $(seq 100); do
  [ "$("$nvshare" lease list | grep -c active)" -ge 4 ] && break || sleep 0.05
done
"$nvshare" lease status
leased --class NMT --busy fallback --fallback-cpu -- echo "translation: done on the CPU"
kill "${leases[@]}"

heading "Asked and received"
memory=$("$nvshare" status | sed -n '/^NAME/,$p')
printf '%-10s %8s %10s %15s %10s   %s\n' program asked received "after change" received memory
for name in "${names[@]}"; do
  case $name in train) asked=50 then=50 ;; eval) asked=20 then=40 ;; *) asked=10 then=10 ;; esac
  printf '%-10s %7s%% %9s%% %14s%% %9s%%   %s\n' "$name" "$asked" \
    "$(share_between "${first[$name]}" "${middle[$name]}")" "$then" \
    "$(share_between "${again[$name]}" "${last[$name]}")" \
    "$(awk -v name="$name" '$1 == name { print $4, "of", $6 }' <<<"$memory")"
done
