#include "interposer/moving/swap/hash.h"

// The fingerprint: of every 16 bytes, as two numbers a and b, with t = (place + 1) * K,
//
//   p = t + C1, q = t ^ C2
//   first  += fold((a ^ p) * (b ^ q))
//   second += fold((a + q) * (b + p))     fold: the upper 64 bits of the product ^ the lower ones
//   any    |= a | b
//
// modulo 2^64. Sums do not depend on the order, so threads take places as they come. Each term
// mixes its 16 bytes and their place like wyhash and XXH3 do it: a change anywhere changes the
// product in about half of its 128 bits, by an amount that depends on all of its other bits, and
// differently in the two sums. Bytes that changed so that one sum stays the same are one case in
// 2^64 of those that programs make, and both 2^-128; the keys that depend on the place tell equal
// values in other places from each other. It is no protection against somebody who looks for a
// collision: who finds one spoils only memory of his own.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr unsigned kThreads = 256;  // what the kernel is written for
constexpr uint64_t kMostBlocks = 1056;
constexpr uint64_t kBytesPerBlock = kThreads * 16 * 4;
constexpr size_t kResultBytes = sizeof(Hasher::numbers[0]);
constexpr int kMostTries = 3;

// One vector: %a, %b and %t.
#define NVSHARE_MIX                   \
  "  add.u64 %p, %t, %c1;\n"          \
  "  xor.b64 %q, %t, %c2;\n"          \
  "  xor.b64 %x, %a, %p;\n"           \
  "  xor.b64 %y, %b, %q;\n"           \
  "  mul.lo.u64 %l, %x, %y;\n"        \
  "  mul.hi.u64 %h, %x, %y;\n"        \
  "  xor.b64 %l, %l, %h;\n"           \
  "  add.u64 %first, %first, %l;\n"   \
  "  add.u64 %x, %a, %q;\n"           \
  "  add.u64 %y, %b, %p;\n"           \
  "  mul.lo.u64 %l, %x, %y;\n"        \
  "  mul.hi.u64 %h, %x, %y;\n"        \
  "  xor.b64 %l, %l, %h;\n"           \
  "  add.u64 %second, %second, %l;\n" \
  "  or.b64 %any, %any, %a;\n"        \
  "  or.b64 %any, %any, %b;\n"        \
  "  add.u64 %t, %t, %tstep;\n"

#define NVSHARE_MIX_OF(a, b) \
  "  mov.b64 %a, " a         \
  ";\n"                      \
  "  mov.b64 %b, " b ";\n" NVSHARE_MIX

// Adds to, and ors into, the three numbers at `out`. The software GPU has it built in.
constexpr char kModule[] =
    "//@softgpu kernel nvshare_fingerprint = fingerprint(ptr, ptr, u64)\n"
    "//@softgpu global nvshare_results = 512\n"
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .global .align 16 .b8 nvshare_results[512];\n"
    ".visible .entry nvshare_fingerprint(.param .u64 out, .param .u64 data, .param .u64 bytes)\n"
    ".maxntid 256, 1, 1\n"
    "{\n"
    "  .reg .pred %more;\n"
    "  .reg .b32 %r<8>;\n"
    "  .reg .b64 %out, %at, %place, %count, %stride, %step, %three, %t, %tstep, %c1, %c2;\n"
    "  .reg .b64 %a, %b, %p, %q, %x, %y, %l, %h, %first, %second, %any, %d<8>;\n"
    "  .shared .align 16 .b8 sums[6144];\n"
    "  ld.param.u64 %out, [out];\n"
    "  ld.param.u64 %at, [data];\n"
    "  ld.param.u64 %count, [bytes];\n"
    "  shr.u64 %count, %count, 4;\n"
    "  mov.u32 %r0, %ctaid.x;\n"
    "  mov.u32 %r1, %ntid.x;\n"
    "  mov.u32 %r2, %tid.x;\n"
    "  mov.u32 %r3, %nctaid.x;\n"
    "  mul.wide.u32 %place, %r0, %r1;\n"
    "  cvt.u64.u32 %d0, %r2;\n"
    "  add.u64 %place, %place, %d0;\n"
    "  mul.wide.u32 %stride, %r3, %r1;\n"
    "  mul.lo.u64 %three, %stride, 3;\n"
    "  shl.b64 %step, %stride, 4;\n"
    "  shl.b64 %d0, %place, 4;\n"
    "  add.u64 %at, %at, %d0;\n"
    "  mov.u64 %d1, 0x9e3779b97f4a7c15;\n"
    "  mov.u64 %c1, 0xa0761d6478bd642f;\n"
    "  mov.u64 %c2, 0xe7037ed1a0b428db;\n"
    "  add.u64 %t, %place, 1;\n"
    "  mul.lo.u64 %t, %t, %d1;\n"
    "  mul.lo.u64 %tstep, %stride, %d1;\n"
    "  mov.u64 %first, 0;\n"
    "  mov.u64 %second, 0;\n"
    "  mov.u64 %any, 0;\n"
    // Four loads at once, as long as there are four.
    "four:\n"
    "  add.u64 %d0, %place, %three;\n"
    "  setp.lt.u64 %more, %d0, %count;\n"
    "  @!%more bra one;\n"
    "  ld.global.v2.u64 {%d0, %d1}, [%at];\n"
    "  add.u64 %at, %at, %step;\n"
    "  ld.global.v2.u64 {%d2, %d3}, [%at];\n"
    "  add.u64 %at, %at, %step;\n"
    "  ld.global.v2.u64 {%d4, %d5}, [%at];\n"
    "  add.u64 %at, %at, %step;\n"
    "  ld.global.v2.u64 {%d6, %d7}, [%at];\n"
    "  add.u64 %at, %at, %step;\n"
    "  add.u64 %place, %place, %three;\n"
    "  add.u64 %place, %place, %stride;\n"
    NVSHARE_MIX_OF("%d0", "%d1")
    NVSHARE_MIX_OF("%d2", "%d3")
    NVSHARE_MIX_OF("%d4", "%d5")
    NVSHARE_MIX_OF("%d6", "%d7")
    "  bra four;\n"
    "one:\n"
    "  setp.lt.u64 %more, %place, %count;\n"
    "  @!%more bra sum;\n"
    "  ld.global.v2.u64 {%d0, %d1}, [%at];\n"
    "  add.u64 %at, %at, %step;\n"
    "  add.u64 %place, %place, %stride;\n"
    NVSHARE_MIX_OF("%d0", "%d1")
    "  bra one;\n"
    // The block's threads together, by halves.
    "sum:\n"
    "  mov.u32 %r4, sums;\n"
    "  mad.lo.u32 %r4, %r2, 8, %r4;\n"
    "  st.shared.u64 [%r4], %first;\n"
    "  st.shared.u64 [%r4+2048], %second;\n"
    "  st.shared.u64 [%r4+4096], %any;\n"
    "  mov.u32 %r5, 128;\n"
    "half:\n"
    "  bar.sync 0;\n"
    "  setp.lt.u32 %more, %r2, %r5;\n"
    "  @!%more bra halved;\n"
    "  mad.lo.u32 %r6, %r5, 8, %r4;\n"
    "  ld.shared.u64 %d0, [%r6];\n"
    "  ld.shared.u64 %d1, [%r6+2048];\n"
    "  ld.shared.u64 %d2, [%r6+4096];\n"
    "  add.u64 %first, %first, %d0;\n"
    "  add.u64 %second, %second, %d1;\n"
    "  or.b64 %any, %any, %d2;\n"
    "  st.shared.u64 [%r4], %first;\n"
    "  st.shared.u64 [%r4+2048], %second;\n"
    "  st.shared.u64 [%r4+4096], %any;\n"
    "halved:\n"
    "  shr.u32 %r5, %r5, 1;\n"
    "  setp.ne.u32 %more, %r5, 0;\n"
    "  @%more bra half;\n"
    "  setp.ne.u32 %more, %r2, 0;\n"
    "  @%more bra done;\n"
    "  red.global.add.u64 [%out], %first;\n"
    "  red.global.add.u64 [%out+8], %second;\n"
    "  red.global.or.b64 [%out+16], %any;\n"
    "done:\n"
    "  ret;\n"
    "}\n";

#undef NVSHARE_MIX_OF
#undef NVSHARE_MIX

static_assert(kBatch * kResultBytes == 512, "what the module has for results");

bool load(Hasher& hasher) {
  size_t bytes = 0;
  if (hasher.module == nullptr &&
      real<FunctionId::cuModuleLoadData>(&hasher.module, static_cast<const void*>(kModule)) !=
          CUDA_SUCCESS) {
    hasher.module = nullptr;
    return false;
  }
  if (hasher.stream == nullptr &&
      real<FunctionId::cuStreamCreate>(&hasher.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    hasher.stream = nullptr;
    return false;
  }
  return real<FunctionId::cuModuleGetGlobal_v2>(&hasher.results, &bytes, hasher.module,
                                                "nvshare_results") == CUDA_SUCCESS &&
         real<FunctionId::cuModuleGetFunction>(&hasher.function, hasher.module,
                                               "nvshare_fingerprint") == CUDA_SUCCESS;
}

bool finish(Hasher& hasher) {
  if (hasher.busy) {
    hasher.busy = real<FunctionId::cuStreamSynchronize>(hasher.stream) != CUDA_SUCCESS;
  }
  return !hasher.busy;
}

CUresult launch(const Hasher& hasher, const HashTask& task, size_t n) {
  CUdeviceptr out = hasher.results + n * kResultBytes;
  CUdeviceptr data = task.address;
  uint64_t bytes = task.bytes;
  void* parameters[] = {&out, &data, &bytes};
  const uint64_t wanted = (bytes + kBytesPerBlock - 1) / kBytesPerBlock;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  return real<FunctionId::cuLaunchKernel>(hasher.function, blocks, 1u, 1u, kThreads, 1u, 1u, 0u,
                                          hasher.stream, static_cast<void**>(parameters),
                                          static_cast<void**>(nullptr));
}

}  // namespace

bool load_fingerprint(Hasher& hasher) {
  if (hasher.function != nullptr) return true;
  // It may fail for want of memory, of which there will be more; but not for ever.
  if (hasher.tries >= kMostTries) return false;
  hasher.tries += 1;
  if (load(hasher)) return true;
  hasher.function = nullptr;
  return false;
}

bool fingerprint(Hasher& hasher, const HashTask* tasks, size_t count, Fingerprint* results) {
  if (!finish(hasher) || !load_fingerprint(hasher)) return false;
  const size_t bytes = count * kResultBytes;
  hasher.busy = true;
  bool good = real<FunctionId::cuMemsetD8Async>(hasher.results, static_cast<unsigned char>(0),
                                                bytes, hasher.stream) == CUDA_SUCCESS;
  for (size_t n = 0; n < count && good; ++n) {
    good = launch(hasher, tasks[n], n) == CUDA_SUCCESS;
  }
  good = good &&
         real<FunctionId::cuMemcpyDtoHAsync_v2>(static_cast<void*>(hasher.numbers), hasher.results,
                                                bytes, hasher.stream) == CUDA_SUCCESS;
  good = finish(hasher) && good;
  for (size_t n = 0; n < count && good; ++n) {
    results[n] = {hasher.numbers[n][0], hasher.numbers[n][1], hasher.numbers[n][2]};
  }
  return good;
}

}  // namespace nvshare::interposer::moving::swap
