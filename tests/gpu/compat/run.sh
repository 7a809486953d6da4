#!/usr/bin/env bash
# run.sh BUILD_DIR OUT [SECTION...]: real programs on a real card, unshared, under `nvshare run`, and
# two at a time; see README.md. Writes OUT/compat.json and OUT/compat.md. Ends with 1 when a result
# differs, a program fails or an overhead is above its limit.
set -euo pipefail
. "$(dirname "$0")/../common/start.sh"
start compat 345 "view cuda cupy jax torch overhead" "$@"
