#!/usr/bin/env bash
# run.sh BUILD_DIR OUT: services with leases beside a training job on a real card; see README.md. Writes
# OUT/arbiter.json and OUT/arbiter.md. Ends with 1 when a rule is broken.
set -euo pipefail
. "$(dirname "$0")/../common/start.sh"
start arbiter 420 "" "$@"
