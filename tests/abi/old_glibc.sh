#!/usr/bin/env bash
# old_glibc.sh SOURCE LIBRARY GLIBC: runs programs that preload LIBRARY (libnvshare.so) on an older C
# library. GLIBC is a folder into which that C library and its development files were unpacked, as from
#   dpkg -x libc6_2.31-13+deb11u11_amd64.deb GLIBC; dpkg -x libc6-dev_2.31-13+deb11u11_amd64.deb GLIBC
set -euo pipefail
source=$1 library=$2 glibc=$3
triplet=$(${CXX:-c++} -print-multiarch)
libc=$glibc/lib/$triplet develop=$glibc/usr/lib/$triplet
loader=$(echo "$libc"/ld-linux*.so.*)
compiler=$(dirname "$(${CXX:-c++} -print-libgcc-file-name)")
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

compile() { # NAME SOURCE
  ${CXX:-c++} -std=c++20 -O0 -fPIC -fno-exceptions -fno-rtti -fno-threadsafe-statics \
    -fno-optimize-sibling-calls -I"$source/src" -I"$source/tests" -DNVSHARE_SOFTGPU_LIBRARY='""' \
    -c "$source/$2" -o "$work/$1.o"
}
link() {
  ${CXX:-c++} -nostdlib -Wl,--as-needed "$@" \
    "$libc/libdl.so.2" "$libc/libc.so.6" "$develop/libc_nonshared.a" "$loader"
}
compile table src/cuda/table.cpp
compile driver tests/abi/recording_driver.cpp
compile relay tests/abi/relay.cpp
compile roads tests/abi/roads_main.cpp
mkdir "$work/driver"
driver=$work/driver/libcuda.so.1
link -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic \
  -Wl,--version-script="$source/tests/abi/recording.map" "$work"/{driver,table}.o -o "$driver"
link -shared "$work/relay.o" "$driver" -o "$work/librelay.so"
link -Wl,-dynamic-linker,"$loader" "$develop"/{Scrt1,crti}.o "$compiler/crtbeginS.o" \
  "$work"/{roads,table}.o "$compiler/crtendS.o" "$develop/crtn.o" -o "$work/roads"

roads() {
  echo "$*"
  timeout 60 env LD_LIBRARY_PATH="$libc:$work/driver" LD_PRELOAD="$library" "$work/roads" "$@"
}
roads version "$driver"
roads arguments "$driver"
roads newer_driver "$driver"
roads scope "$work/librelay.so"
roads c_library
roads manners
