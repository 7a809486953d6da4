#pragma once

#include "run.h"

namespace nvshare::conformance {

// One text for both cards: a real driver compiles the PTX, the software GPU reads the lines that
// begin with //@softgpu and has kernels of its own that do the same:
//
//   noop()                       nothing
//   fill(data, value, count)     data[i] = value, the type being that of the value
//   add(data, value, count)      data[i] += value
//   scale(data, factor, count)   data[i] *= factor
//   copy(dst, src, bytes)
//   checksum(out, src, bytes)    *out (u64) = the sum of the bytes
//   hash(out, src, bytes)        *out (u64) = FNV-1a of the bytes
//   spin(nanoseconds)            takes that long
//
// Results do not depend on the grid, as long as it has one dimension.
inline constexpr char kKernels[] = R"(//@softgpu kernel noop = noop()
//@softgpu kernel fill32 = fill(ptr, u32, u64)
//@softgpu kernel add32 = add(ptr, u32, u64)
//@softgpu kernel scale32 = scale(ptr, u32, u64)
//@softgpu kernel copy = copy(ptr, ptr, u64)
//@softgpu kernel checksum = checksum(ptr, ptr, u64)
//@softgpu kernel hash = hash(ptr, ptr, u64)
//@softgpu kernel spin = spin(u64)
//@softgpu global table = 64
.version 7.0
.target sm_75
.address_size 64

.visible .global .align 16 .b8 table[64];

.visible .entry noop()
{
  ret;
}

.visible .entry fill32(.param .u64 dst, .param .u32 value, .param .u64 count)
{
  .reg .pred %p;
  .reg .b32 %r<6>;
  .reg .b64 %d<8>;
  ld.param.u64 %d0, [dst];
  ld.param.u32 %r0, [value];
  ld.param.u64 %d1, [count];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %d2, %r1, %r2;
  cvt.u64.u32 %d3, %r3;
  add.u64 %d2, %d2, %d3;
  mul.wide.u32 %d4, %r4, %r2;
again:
  setp.ge.u64 %p, %d2, %d1;
  @%p bra done;
  shl.b64 %d5, %d2, 2;
  add.u64 %d5, %d0, %d5;
  st.global.u32 [%d5], %r0;
  add.u64 %d2, %d2, %d4;
  bra again;
done:
  ret;
}

.visible .entry add32(.param .u64 data, .param .u32 value, .param .u64 count)
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  ld.param.u64 %d0, [data];
  ld.param.u32 %r0, [value];
  ld.param.u64 %d1, [count];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %d2, %r1, %r2;
  cvt.u64.u32 %d3, %r3;
  add.u64 %d2, %d2, %d3;
  mul.wide.u32 %d4, %r4, %r2;
again:
  setp.ge.u64 %p, %d2, %d1;
  @%p bra done;
  shl.b64 %d5, %d2, 2;
  add.u64 %d5, %d0, %d5;
  ld.global.u32 %r5, [%d5];
  add.u32 %r6, %r5, %r0;
  st.global.u32 [%d5], %r6;
  add.u64 %d2, %d2, %d4;
  bra again;
done:
  ret;
}

.visible .entry scale32(.param .u64 data, .param .u32 factor, .param .u64 count)
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  ld.param.u64 %d0, [data];
  ld.param.u32 %r0, [factor];
  ld.param.u64 %d1, [count];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %d2, %r1, %r2;
  cvt.u64.u32 %d3, %r3;
  add.u64 %d2, %d2, %d3;
  mul.wide.u32 %d4, %r4, %r2;
again:
  setp.ge.u64 %p, %d2, %d1;
  @%p bra done;
  shl.b64 %d5, %d2, 2;
  add.u64 %d5, %d0, %d5;
  ld.global.u32 %r5, [%d5];
  mul.lo.u32 %r6, %r5, %r0;
  st.global.u32 [%d5], %r6;
  add.u64 %d2, %d2, %d4;
  bra again;
done:
  ret;
}

.visible .entry copy(.param .u64 dst, .param .u64 src, .param .u64 bytes)
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %d<12>;
  ld.param.u64 %d0, [dst];
  ld.param.u64 %d6, [src];
  ld.param.u64 %d1, [bytes];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %d2, %r1, %r2;
  cvt.u64.u32 %d3, %r3;
  add.u64 %d2, %d2, %d3;
  mul.wide.u32 %d4, %r4, %r2;
again:
  setp.ge.u64 %p, %d2, %d1;
  @%p bra done;
  add.u64 %d7, %d6, %d2;
  ld.global.u8 %r5, [%d7];
  add.u64 %d8, %d0, %d2;
  st.global.u8 [%d8], %r5;
  add.u64 %d2, %d2, %d4;
  bra again;
done:
  ret;
}

.visible .entry checksum(.param .u64 out, .param .u64 src, .param .u64 bytes)
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %d<12>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r3, %tid.x;
  or.b32 %r1, %r1, %r3;
  setp.ne.u32 %p, %r1, 0;
  @%p ret;
  ld.param.u64 %d0, [out];
  ld.param.u64 %d6, [src];
  ld.param.u64 %d1, [bytes];
  mov.u64 %d9, 0;
again:
  setp.eq.u64 %p, %d1, 0;
  @%p bra done;
  ld.global.u8 %r5, [%d6];
  cvt.u64.u32 %d8, %r5;
  add.u64 %d9, %d9, %d8;
  add.u64 %d6, %d6, 1;
  sub.u64 %d1, %d1, 1;
  bra again;
done:
  st.global.u64 [%d0], %d9;
  ret;
}

.visible .entry hash(.param .u64 out, .param .u64 src, .param .u64 bytes)
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %d<12>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r3, %tid.x;
  or.b32 %r1, %r1, %r3;
  setp.ne.u32 %p, %r1, 0;
  @%p ret;
  ld.param.u64 %d0, [out];
  ld.param.u64 %d6, [src];
  ld.param.u64 %d1, [bytes];
  mov.u64 %d9, 0xcbf29ce484222325;
again:
  setp.eq.u64 %p, %d1, 0;
  @%p bra done;
  ld.global.u8 %r5, [%d6];
  cvt.u64.u32 %d8, %r5;
  xor.b64 %d9, %d9, %d8;
  mul.lo.u64 %d9, %d9, 0x100000001b3;
  add.u64 %d6, %d6, 1;
  sub.u64 %d1, %d1, 1;
  bra again;
done:
  st.global.u64 [%d0], %d9;
  ret;
}

.visible .entry spin(.param .u64 nanoseconds)
{
  .reg .pred %p;
  .reg .b64 %d<4>;
  ld.param.u64 %d0, [nanoseconds];
  mov.u64 %d1, %globaltimer;
again:
  mov.u64 %d2, %globaltimer;
  sub.u64 %d3, %d2, %d1;
  setp.lt.u64 %p, %d3, %d0;
  @%p bra again;
  ret;
}
)";

// The kernels above, loaded into the current context. Null functions when loading failed, which
// is then on the page.
struct Kernels {
  cuda::CUmodule module = nullptr;
  cuda::CUfunction noop = nullptr;
  cuda::CUfunction fill32 = nullptr;
  cuda::CUfunction add32 = nullptr;
  cuda::CUfunction scale32 = nullptr;
  cuda::CUfunction copy = nullptr;
  cuda::CUfunction checksum = nullptr;
  cuda::CUfunction hash = nullptr;
  cuda::CUfunction spin = nullptr;
};

Kernels load_kernels(const Run& run);

}  // namespace nvshare::conformance
