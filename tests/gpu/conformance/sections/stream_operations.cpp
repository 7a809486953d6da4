// Waiting for and writing values in stream order.

#include <atomic>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

void single(Run& run) {
  const CUstream stream = new_stream(run);
  void* host = nullptr;
  const CUdeviceptr pinned = pinned_memory_on_device(run, 4096, &host);
  if (host == nullptr) return;
  auto* words = static_cast<volatile uint32_t*>(host);
  // What the device looks at meanwhile.
  std::atomic_ref<uint32_t> watched(static_cast<uint32_t*>(host)[2]);
  const CUdeviceptr device = device_memory(run, kMiB);
  fill(run, device, 0, 64);
  for (int i = 0; i < 8; ++i) words[i] = 0;
  CALL(cuStreamWriteValue32_v2, stream, pinned, 5, CU_STREAM_WRITE_VALUE_DEFAULT);
  CALL(cuStreamSynchronize, stream);
  run.value("word", static_cast<unsigned>(words[0]));
  CALL(cuStreamWriteValue64_v2, stream, pinned, 0x100000002, CU_STREAM_WRITE_VALUE_DEFAULT);
  CALL(cuStreamSynchronize, stream);
  run.value("low word", static_cast<unsigned>(words[0]));
  run.value("high word", static_cast<unsigned>(words[1]));
  CALL(cuStreamWaitValue32_v2, stream, pinned + 8, 3, CU_STREAM_WAIT_VALUE_GEQ);
  CALL(cuStreamWriteValue32_v2, stream, device, 77, CU_STREAM_WRITE_VALUE_DEFAULT);
  CALL(cuStreamQuery, stream);
  watched = 2;
  CALL(cuStreamQuery, stream);
  watched = 4;
  CALL(cuStreamSynchronize, stream);
  run.value("written behind the wait", all_words(run, device, 77, 1));
  watched = 6;
  CALL(cuStreamWaitValue32_v2, stream, pinned + 8, 6, CU_STREAM_WAIT_VALUE_EQ);
  CALL(cuStreamWaitValue32_v2, stream, pinned + 8, 2, CU_STREAM_WAIT_VALUE_AND);
  CALL(cuStreamWaitValue32_v2, stream, pinned + 8, 1, CU_STREAM_WAIT_VALUE_NOR);
  CALL(cuStreamWaitValue64_v2, stream, pinned + 8, 6, CU_STREAM_WAIT_VALUE_GEQ);
  CALL(cuStreamSynchronize, stream);
  CALL(cuStreamWriteValue32, stream, pinned, 9, 0);
  CALL(cuStreamWaitValue32, stream, pinned, 9, 0);
  CALL(cuStreamWriteValue32_v2_ptsz, nullptr, pinned, 10, 0);
  CALL(cuStreamSynchronize, stream);
  CALL(cuStreamSynchronize_ptsz, nullptr);
  run.value("word", static_cast<unsigned>(words[0]));
  CALL(cuStreamWriteValue32_v2, stream, pinned + 2, 1, 0);
  CALL(cuStreamWriteValue64_v2, stream, pinned + 4, 1, 0);
  CALL(cuStreamWriteValue32_v2, stream, 0, 1, 0);
  CALL(cuStreamWriteValue32_v2, stream, pinned, 1, 0x80);
  CALL(cuStreamWaitValue32_v2, stream, pinned + 1, 1, 0);
  CALL(cuStreamWaitValue32_v2, stream, 0, 1, 0);
  CALL(cuStreamWaitValue32_v2, stream, pinned, 1, 0x80);
  CALL(cuStreamSynchronize, stream);
}

void batches(Run& run) {
  const CUstream stream = new_stream(run);
  const CUdeviceptr device = device_memory(run, kMiB);
  fill(run, device, 0, 64);
  static CUstreamBatchMemOpParams operations[300] = {};  // more than a batch may have
  operations[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = device;
  operations[0].writeValue.value = 1;
  operations[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[1].writeValue.address = device + 4;
  operations[1].writeValue.value = 1;
  operations[2].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[2].waitValue.address = device + 4;
  operations[2].waitValue.value = 1;
  CALL(cuStreamBatchMemOp_v2, stream, 3, operations, 0);
  CALL(cuStreamSynchronize, stream);
  run.value("both written", all_words(run, device, 1, 2));
  CALL(cuStreamBatchMemOp_v2, stream, 0, operations, 0);
  CALL(cuStreamBatchMemOp_v2, stream, 1, nullptr, 0);
  CALL(cuStreamBatchMemOp_v2, stream, 257, operations, 0);
  CALL(cuStreamBatchMemOp_v2, stream, 1, operations, 1);
  operations[0].operation = static_cast<CUstreamBatchMemOpType>(99);
  CALL_WHERE("operation = 99", cuStreamBatchMemOp_v2, stream, 1, operations, 0);
  CALL(cuStreamSynchronize, stream);
}

}  // namespace

void stream_operations(Run& run) {
  use_card(run);
  single(run);
  run.heading("batches");
  batches(run);
}

}  // namespace nvshare::conformance
