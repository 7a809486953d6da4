#!/usr/bin/env bash
# sanitize.sh asan|tsan: builds the programs below under that sanitizer and runs every test in them.
# (`cmake --build --preset asan && ctest --preset asan` does it for everything there is; that takes long.)
set -euo pipefail
preset=$1
jobs=${JOBS:-$(nproc)}
# What has threads, processes or shared memory; memory errors and undefined behaviour can be anywhere
# (the gate's barriers are nothing the thread sanitizer knows; random events for the core under address and undefined-behaviour sanitizers: fuzz_core).
programs=(memory_accounting_test interposer_managed_test scheduler_test daemon_test softgpu_core_test
  softgpu_engine_test interposer_parts_test wire_test)
[ "$preset" = asan ] && programs+=(sim_test memory_faults_test interposer_gate_test cli_test base_test core_test
  config_test sim_file_test softgpu_parts_test lease_client_test)
# Measures time.
alone=softgpu_processes_test
# Of this one only what its threads do, and under address sanitizers what it does with memory: failing
# every driver call in turn takes minutes.
swap_tests='*Race*'
[ "$preset" = asan ] && swap_tests='*Race*:Swap.*:SwapPassing.*:VirtualSwap.*'
cd "$(dirname "$0")/.."
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" -j "$jobs" --target interposer_swap_test "$alone" "${programs[@]}"

run() { # program, filter: what it says, as a whole
  local begin=$SECONDS output code=0
  output=$("build/$preset/bin/$1" --gtest_brief=1 --gtest_filter="$2" 2>&1) || code=$?
  printf -- '--- %s under %s: %s s\n%s\n' "$1" "$preset" $((SECONDS - begin)) "$output"
  return $code
}
export -f run
export preset
{ printf 'interposer_swap_test %s\n' "$swap_tests"; printf '%s *\n' "${programs[@]}"; } |
  xargs -P "$jobs" -L 1 bash -c 'run "$@"' run
run "$alone" '*'
