#!/usr/bin/env bash
# run.sh BUILD_DIR OUT [SECTION...]: jobs that together have more memory than a real card; see README.md.
# Writes OUT/memory.json. Ends with 1 when a limit is missed.
set -euo pipefail
. "$(dirname "$0")/../common/start.sh"
start memory 590 "link pair pair30 exchange shortage four inference torch overhead" "$@"
