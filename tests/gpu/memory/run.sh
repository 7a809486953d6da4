#!/usr/bin/env bash
# run.sh BUILD_DIR OUT [SECTION...]: jobs that together have more memory than a real card; see README.md.
# Writes OUT/memory.json. Ends with 1 when a limit is missed.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: tests/gpu/memory/run.sh BUILD_DIR OUT [pair] [pair30] [four]" >&2
  exit 2
fi
for needed in "$1/bin/nvshare" "$1/bin/nvshare-scheduler" "$1/bin/gpu-job" "$1/lib/libnvshare.so"; do
  if [ ! -e "$needed" ]; then
    echo "memory: $needed is missing: build nvshare first" >&2
    exit 2
  fi
done
exec timeout --kill-after=10 590 python3 "$(dirname "$0")/memory.py" "$@"
