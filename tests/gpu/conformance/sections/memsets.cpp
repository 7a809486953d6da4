// Fills of 1, 2 and 4 bytes, in one and two dimensions.

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

void right(Run& run) {
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUstream s = new_stream(run);
  const auto word = [&](size_t index) { return words_at(run, a + index * 4, 1)[0]; };
  CALL(cuMemsetD8_v2, a, 0x11, 100);
  run.value("word", word(24));
  CALL(cuMemsetD16_v2, a, 0x2222, 100);
  run.value("word", word(49));
  CALL(cuMemsetD32_v2, a, 0x33333333, 100);
  run.value("word", word(99));
  CALL(cuMemsetD8Async, a + 1, 0x44, 2, s);
  CALL(cuStreamSynchronize, s);
  run.value("word", word(0));
  CALL(cuMemsetD16Async, a + 2, 0x5555, 1, s);
  CALL(cuMemsetD32Async, a + 4, 0x66666666, 1, s);
  CALL(cuStreamSynchronize, s);
  run.value("word", word(0));
  run.value("word", word(1));
  CALL(cuMemsetD2D8_v2, a, 64, 0x77, 8, 4);
  run.value("in the last row", word(48));
  run.value("beside it", word(50));
  CALL(cuMemsetD2D16_v2, a, 64, 0x8888, 4, 4);
  run.value("in the last row", word(48));
  CALL(cuMemsetD2D32_v2, a, 64, 0x99999999, 2, 4);
  run.value("in the last row", word(48));
  CALL(cuMemsetD2D8Async, a, 64, 0x1, 8, 4, s);
  CALL(cuMemsetD2D16Async, a, 64, 0x2, 4, 4, s);
  CALL(cuMemsetD2D32Async, a, 64, 0x3, 2, 4, s);
  CALL(cuStreamSynchronize, s);
  run.value("in the last row", word(48));
  CALL(cuMemsetD32_v2_ptds, a, 0x5, 4);
  CALL(cuMemsetD32Async_ptsz, a, 0x6, 4, nullptr);
  CALL(cuStreamSynchronize_ptsz, nullptr);
  run.value("word", word(3));
}

void wrong(Run& run) {
  const CUdeviceptr a = device_memory(run, kMiB);
  static uint32_t pageable[64];
  const CUdeviceptr host = reinterpret_cast<CUdeviceptr>(pageable);
  const CUdeviceptr freed = device_memory(run, 4 * kMiB);
  SETUP(cuMemFree_v2, freed);
  CALL(cuMemsetD8_v2, a, 1, 0);
  CALL(cuMemsetD8_v2, 0, 1, 0);
  CALL(cuMemsetD8_v2, 0, 1, 16);
  CALL(cuMemsetD16_v2, a + 1, 1, 16);
  CALL(cuMemsetD32_v2, a + 2, 1, 16);
  CALL(cuMemsetD32_v2, freed, 1, 16);
  CALL(cuMemsetD32_v2, host, 1, 16);
  CALL(cuMemsetD32Async, 0, 1, 16, nullptr);
  CALL(cuMemsetD32Async, freed, 1, 16, nullptr);
  CALL(cuMemsetD2D32_v2, a, 4, 1, 16, 2);
  CALL(cuMemsetD2D32_v2, a, 0, 1, 16, 2);
  CALL(cuMemsetD2D32_v2, a, 0, 1, 16, 1);
  CALL(cuMemsetD2D32_v2, a, 64, 1, 0, 2);
  CALL(cuMemsetD2D32_v2, a, 64, 1, 16, 0);
  CALL(cuMemsetD2D32_v2, a, 66, 1, 16, 2);
  CALL(cuCtxSynchronize);
  // Last: should this be tried after all, the context may be lost.
  CALL(cuMemsetD32_v2, a, 1, 256 * kMiB);
  CALL(cuCtxSynchronize);
}

}  // namespace

void memsets(Run& run) {
  use_card(run);
  right(run);
  run.heading("wrong");
  wrong(run);
}

}  // namespace nvshare::conformance
