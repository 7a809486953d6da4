#!/usr/bin/env bash
# layers.sh ROOT: fails when the pure layers learn of the world: src/core and src/base hold no sockets,
# clocks, threads, logging, files or third-party formats, core links base alone, and base nothing of
# ours. CONTRIBUTING.md says why. And when rooms of the interposer look into each other.
set -uo pipefail
root=${1:?usage: layers.sh ROOT}
failed=0

# complain WHAT LINES: nothing when there are no lines.
complain() {
  [ -z "$2" ] && return
  failed=1
  printf '%s:\n%s\n' "$1" "$2"
}

sources() { find "$root/$1" -name '*.h' -o -name '*.cpp' | grep -v '_test\.cpp$' | grep -v '/testing\.h$'; }
in_sources() { sources "$1" | xargs grep -nE "$2" /dev/null; }

world='#include *<(thread|mutex|shared_mutex|condition_variable|atomic|future|semaphore|stop_token|latch|barrier'
world+='|iostream|fstream|sstream|ostream|istream|cstdio|stdio\.h|filesystem|random|ctime|time\.h|csignal|signal\.h'
world+='|pthread\.h|poll\.h|fcntl\.h|dlfcn\.h|netinet/.*|arpa/.*|sys/.*|linux/.*'
world+='|spdlog/.*|nlohmann/.*|toml.*|CLI/.*|curl/.*|grpc.*|microhttpd\.h|sqlite3\.h)[^>]*>'
clocks='(steady_clock|system_clock|high_resolution_clock)|clock_gettime|gettimeofday|[^_a-z]time\((NULL|nullptr|0)\)'
output='std::(cout|cerr|clog)|[^_a-z]printf\(|spdlog::|getenv\('

for layer in src/core src/base; do
  complain "$layer includes what only shells may" "$(in_sources $layer "$world")"
  complain "$layer looks at a clock; time is handed in" "$(in_sources $layer "$clocks")"
  complain "$layer writes or reads the environment" "$(in_sources $layer "$output")"
  complain "$layer includes <unistd.h>, which only base/unique_fd.h may" \
    "$(in_sources $layer '#include *<unistd\.h>' | grep -v '/src/base/unique_fd\.h:')"
done
complain "src/core includes another layer than base and core" \
  "$(in_sources src/core '#include *"' | grep -vE '#include *"(core|base)/')"
complain "src/core uses file descriptors" "$(in_sources src/core '#include *"base/unique_fd\.h"')"
complain "src/base includes another layer" "$(in_sources src/base '#include *"' | grep -vE '#include *"base/')"

moving=src/interposer/moving
complain "$moving includes another room than guest, catch and gate" \
  "$(in_sources $moving '#include *"interposer/' | grep -vE '#include *"interposer/(guest|catch|gate|moving)/')"
doors='moving/(moving|swap/(swap|virtual|share)|managed/managed)\.h"'
for room in guest catch gate link memory; do
  complain "src/interposer/$room includes the insides of moving" \
    "$(in_sources src/interposer/$room '#include *"interposer/moving/' | grep -vE "$doors")"
done

linked() { # what the library of a folder links, in one line
  tr '\n' ' ' <"$root/$1/CMakeLists.txt" | grep -oE "nvshare_library\(${2} [^)]*\)" | sed 's/.* LINK *//; s/ *)$//'
}
[ "$(linked src/core nvshare_core)" = "nvshare_base" ] || complain "nvshare_core links" "$(linked src/core nvshare_core)"
[ "$(linked src/base nvshare_base)" = "fmt::fmt" ] || complain "nvshare_base links" "$(linked src/base nvshare_base)"
exit $failed
