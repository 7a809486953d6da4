# shellcheck shell=bash
# Sourced by the run.sh of the folders beside this one: start NAME SECONDS "SECTIONS" BUILD_DIR OUT [SECTION...]
# becomes NAME/NAME.py, with everything in place and an end after so many seconds (or BENCH_LIMIT).
start() {
  local name=$1 seconds=${BENCH_LIMIT:-$2} sections=$3 folder needed programs=(nvshare nvshare-scheduler)
  shift 3
  if [ $# -lt 2 ]; then
    echo "usage: tests/gpu/$name/run.sh BUILD_DIR OUT [SECTION...], of $sections" >&2
    exit 2
  fi
  case $name in compat|conformance|memory) programs+=(gpu-job launch-cost) ;; esac
  if [ "$name" = memory ]; then programs+=(swap_bench); fi
  for needed in "${programs[@]/#/bin/}" lib/libnvshare.so; do
    if [ ! -e "$1/$needed" ]; then
      echo "$name: $1/$needed is missing: build nvshare first" >&2
      exit 2
    fi
  done
  folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  export PYTHONPATH=$folder/common${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 BENCH_SECONDS=$((seconds - 10))
  exec timeout --kill-after=10 "$seconds" python3 "$folder/$name/$name.py" "$@"
}
