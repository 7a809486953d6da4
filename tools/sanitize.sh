#!/usr/bin/env bash
# sanitize.sh asan|tsan: builds the programs below under that sanitizer and runs every test in them.
# (`cmake --build --preset asan && ctest --preset asan` does it for everything there is; that takes long.)
set -euo pipefail
preset=$1
# What has threads, processes or shared memory; memory errors and undefined behaviour can be anywhere
# (the gate's barriers are nothing the thread sanitizer knows; random events for the core under address and undefined-behaviour sanitizers: fuzz_core).
programs=(softgpu_engine_test softgpu_core_test softgpu_processes_test memory_accounting_test
  interposer_parts_test interposer_managed_test wire_test daemon_test scheduler_test)
[ "$preset" = asan ] && programs+=(base_test core_test sim_test config_test sim_file_test cli_test
  softgpu_parts_test memory_faults_test interposer_gate_test)
# Of this one only what its threads do, and under address sanitizers what it does with memory: failing
# every driver call in turn takes minutes.
swap_tests='*Race*'
[ "$preset" = asan ] && swap_tests='*Race*:Swap.*:VirtualSwap.*'
cd "$(dirname "$0")/.."
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" -j "${JOBS:-$(nproc)}" --target interposer_swap_test "${programs[@]}"
for program in "${programs[@]}"; do
  echo "--- $program under $preset"
  "build/$preset/bin/$program" --gtest_brief=1
done
echo "--- interposer_swap_test ($swap_tests) under $preset"
"build/$preset/bin/interposer_swap_test" --gtest_brief=1 --gtest_filter="$swap_tests"
