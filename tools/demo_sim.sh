#!/usr/bin/env bash
# The policies at work in virtual time: demo_sim.sh NVSHARE (the program's path). Needs no GPU.
set -euo pipefail

nvshare=${1:?usage: demo_sim.sh NVSHARE}
pictures=build/demo
mkdir -p "$pictures"

heading() { printf '\n=== %s\n\n' "$1"; }
play() { "$nvshare" sim "$@"; }
picture() { play "$1" --policy "$2" --format svg -o "$pictures/$1.svg"; }

heading "Limits that just fill the GPU: billed by wall time (wall) half of it is lost"
play seed-000-1 --policy all --brief
heading "Limits of 110 %: who keeps them, and who fills the GPU"
play seed-000-2 --policy all --brief
heading "Limits of 90 %"
play seed-000-3 --policy all --brief
heading "Who is held back, and when"
play seed-000-3.2
heading "Memory that fits: nothing moves"
play seed-002-co-locate --brief
heading "Memory that does not fit: turns, and only what is missing moves"
play seed-002-oversubscribed
heading "Four hours of work on a GPU with room for one of four: 4 hours, not 15"
play seed-002-4x12 --brief
heading "Twenty seconds of a shared workstation"
play workstation

for scenario in seed-000-1 seed-000-2 seed-000-3 workstation; do picture "$scenario" all; done
for scenario in seed-000-3.2 seed-000-6.1-late-joiner; do picture "$scenario" weighted; done
for scenario in seed-002-oversubscribed two-80g-jobs; do picture "$scenario" metered; done
heading "Pictures of these"
printf '%s\n' "$pictures"/*.svg
heading "Your turn"
printf '%s\n' "$nvshare sim --list" "$nvshare sim --show workstation > mine.toml" \
  "$nvshare sim mine.toml --policy all"
