#!/usr/bin/env bash
# run.sh BUILD_DIR OUT [quick] [SECTION...]: how exactly GPU time is shared out on a real card, by PyTorch
# programs; see README.md. Writes OUT/compute.json and OUT/compute.md. Ends with 1 when a limit is missed.
set -euo pipefail
. "$(dirname "$0")/../common/start.sh"
start compute 590 "single pairs unlimited bursty live four nested long; quick: shorter" "$@"
