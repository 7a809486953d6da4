#pragma once

// All threads together go through the %d1 words at %d0: %d5 is where the next one is. %r1 to %r4
// and %d2 to %d4 are its own.
#define NVSHARE_PTX_EACH_WORD     \
  "mov.u32 %r1, %ctaid.x;\n"      \
  "mov.u32 %r2, %ntid.x;\n"       \
  "mov.u32 %r3, %tid.x;\n"        \
  "mov.u32 %r4, %nctaid.x;\n"     \
  "mul.wide.u32 %d2, %r1, %r2;\n" \
  "cvt.u64.u32 %d3, %r3;\n"       \
  "add.u64 %d2, %d2, %d3;\n"      \
  "mul.wide.u32 %d4, %r4, %r2;\n" \
  "again:\n"                      \
  "setp.ge.u64 %p, %d2, %d1;\n"   \
  "@%p bra done;\n"               \
  "shl.b64 %d5, %d2, 2;\n"        \
  "add.u64 %d5, %d0, %d5;\n"

namespace nvshare::programs {

// One text for both cards: a real driver compiles the PTX, the software GPU reads the //@softgpu
// lines (docs/softgpu.md).
//
//   noop()                      nothing
//   spin(nanoseconds)           takes that long
//   fill32(data, value, count)  data[i] = value
//   add32(data, value, count)   data[i] += value
//   read32(out, data, bytes)    reads all of it; what becomes of out is not said
inline constexpr char kJobKernels[] = R"(//@softgpu kernel noop = noop()
//@softgpu kernel spin = spin(u64)
//@softgpu kernel fill32 = fill(ptr, u32, u64)
//@softgpu kernel add32 = add(ptr, u32, u64)
//@softgpu kernel read32 = checksum(ptr, ptr, u64)
.version 7.0
.target sm_75
.address_size 64

.visible .entry noop()
{
  ret;
}

// One thread of each block looks at the clock; the others keep the block's place on the card full.
.visible .entry spin(.param .u64 nanoseconds)
{
  .reg .pred %p;
  .reg .b32 %r;
  .reg .b64 %d<4>;
  mov.u32 %r, %tid.x;
  setp.ne.u32 %p, %r, 0;
  @%p bra done;
  ld.param.u64 %d0, [nanoseconds];
  mov.u64 %d1, %globaltimer;
again:
  mov.u64 %d2, %globaltimer;
  sub.u64 %d3, %d2, %d1;
  setp.lt.u64 %p, %d3, %d0;
  @%p bra again;
done:
  bar.sync 0;
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
)" NVSHARE_PTX_EACH_WORD R"(  st.global.u32 [%d5], %r0;
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
)" NVSHARE_PTX_EACH_WORD R"(  ld.global.u32 %r5, [%d5];
  add.u32 %r6, %r5, %r0;
  st.global.u32 [%d5], %r6;
  add.u64 %d2, %d2, %d4;
  bra again;
done:
  ret;
}

// Writes only a sum that hardly ever comes, so that nobody can do without the reading.
.visible .entry read32(.param .u64 out, .param .u64 data, .param .u64 bytes)
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  ld.param.u64 %d0, [data];
  ld.param.u64 %d1, [bytes];
  ld.param.u64 %d6, [out];
  shr.u64 %d1, %d1, 2;
  mov.u32 %r6, 0;
)" NVSHARE_PTX_EACH_WORD R"(  ld.global.u32 %r5, [%d5];
  add.u32 %r6, %r6, %r5;
  add.u64 %d2, %d2, %d4;
  bra again;
done:
  setp.ne.u32 %p, %r6, 0x5eed1e55;
  @%p bra end;
  st.global.u32 [%d6], %r6;
end:
  ret;
}
)";

}  // namespace nvshare::programs
