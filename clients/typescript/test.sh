#!/usr/bin/env bash
# test.sh BUILD_DIR: builds and packs the client, and tests the package against BUILD_DIR's scheduler.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 BUILD_DIR" >&2; exit 2; }
NVSHARE_BUILD=$(cd "$1" && pwd)
export NVSHARE_BUILD
cd "$(dirname "$0")"

npm ci --no-audit --no-fund --loglevel error
npm run --silent build

# The tests lie where nothing but the package itself can be imported.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm pack --loglevel error --pack-destination "$folder" >/dev/null
cp -r test "$folder/test"
cp tsconfig.json "$folder"
echo '{"private":true,"type":"module"}' >"$folder/package.json"
npm install --prefix "$folder" --offline --no-audit --no-fund --loglevel error "$folder"/nvshare-*.tgz
node_modules/.bin/tsc -p "$folder/test" --typeRoots "$PWD/node_modules/@types"
node --test "$folder"/test/out/*.test.js
