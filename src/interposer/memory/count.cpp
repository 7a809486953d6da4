#include "interposer/memory/count.h"

#include "interposer/memory/graph.h"
#include "interposer/memory/memory.h"

namespace nvshare::interposer::memory {

constinit Books g_books{};

namespace {

CUcontext current_context() {
  CUcontext context = nullptr;
  return real<FunctionId::cuCtxGetCurrent>(&context) == CUDA_SUCCESS ? context : nullptr;
}

}  // namespace

void memory_reset_after_fork() {
  g_books.trimming.reset_after_fork();
  g_books.mutex.reset_after_fork();
  g_books.records.forget();
  g_books.physicals.forget();
  g_books.handles.forget();
  g_books.mappings.forget();
  forget_left_after_fork();
  g_books.pools.forget();
  g_books.attachments.forget();
}

Serial mark() {
  const Lock lock(g_books.mutex);
  return g_books.last_serial;
}

Charge::Charge(gate::Gate* gate, uint64_t bytes) {
  if (gate == nullptr) return;
  {
    const Lock lock(g_books.mutex);
    refused_ = bytes >= kMostBytes || !g_books.records.hold();
  }
  if (refused_) return;
  if (link::memory_request(*gate, bytes, false) == link::Given::Refused) {
    const Lock lock(g_books.mutex);
    g_books.records.unhold();
    refused_ = true;
    return;
  }
  gate_ = gate;
  bytes_ = bytes;
}

Charge::~Charge() {
  if (gate_ == nullptr) return;
  {
    const Lock lock(g_books.mutex);
    g_books.records.unhold();
  }
  link::pinned_memory_freed(*gate_, bytes_);
}

bool Charge::correct(uint64_t bytes) {
  if (gate_ == nullptr || bytes == bytes_) return true;
  if (bytes > bytes_) {
    if (bytes >= kMostBytes ||
        link::memory_request(*gate_, bytes - bytes_, false) == link::Given::Refused)
      return false;
  } else {
    link::pinned_memory_freed(*gate_, bytes_ - bytes);
  }
  bytes_ = bytes;
  return true;
}

void Charge::keep(Key key, Lifetime lifetime) {
  if (gate_ == nullptr) return;
  const CUcontext context = lifetime == Lifetime::kContext ? current_context() : nullptr;
  Record replaced{};
  bool was_there = false;
  {
    const Lock lock(g_books.mutex);
    const Record record{bytes_, gate_, context, ++g_books.last_serial, lifetime};
    was_there = g_books.records.put(key.number, key.tag(), record, replaced);
  }
  gate_ = nullptr;
  if (was_there) link::pinned_memory_freed(*replaced.gate, replaced.bytes);
}

void Charge::add_to(Key key, Lifetime lifetime) {
  if (gate_ == nullptr) return;
  {
    const Lock lock(g_books.mutex);
    if (Record* known = g_books.records.find(key.number, key.tag())) {
      known->bytes += bytes_;
      g_books.records.unhold();
      gate_ = nullptr;
      return;
    }
  }
  keep(key, lifetime);
}

void Charge::keep_unrecorded() {
  if (gate_ == nullptr) return;
  const Lock lock(g_books.mutex);
  g_books.records.unhold();
  gate_ = nullptr;
}

uint64_t counted(Key key) {
  const Lock lock(g_books.mutex);
  const Record* found = g_books.records.find(key.number, key.tag());
  return found == nullptr ? 0 : found->bytes;
}

void uncount(Key key, Serial before) {
  Record gone{};
  {
    const Lock lock(g_books.mutex);
    const Record* found = g_books.records.find(key.number, key.tag());
    if (found == nullptr || found->serial > before) return;
    gone = *found;
    g_books.records.remove(key.number, key.tag());
  }
  link::pinned_memory_freed(*gone.gate, gone.bytes);
}

void uncount_context(CUcontext context, Serial before) {
  // One gate at a time; a context has one.
  for (;;) {
    gate::Gate* gate = nullptr;
    uint64_t bytes = 0;
    {
      const Lock lock(g_books.mutex);
      g_books.records.remove_if([&](uint64_t, uint32_t, const Record& record) {
        if (record.lifetime != Lifetime::kContext || record.context != context) return false;
        if (record.serial > before || (gate != nullptr && record.gate != gate)) return false;
        gate = record.gate;
        bytes += record.bytes;
        return true;
      });
    }
    if (gate == nullptr) return;
    link::pinned_memory_freed(*gate, bytes);
  }
}

bool stream_is_capturing(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = per_thread ? real<FunctionId::cuStreamIsCapturing_ptsz>(stream, &status)
                                     : real<FunctionId::cuStreamIsCapturing>(stream, &status);
  return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void uncount_unknown(Lifetime lifetime) {
  constexpr size_t kMany = 64;
  struct Question {
    uint64_t address;
    Serial serial;
  };
  // In the order of serial numbers, so that one pass sees each record once.
  Serial after = 0;
  for (;;) {
    Question questions[kMany];
    size_t count = 0;
    {
      const Lock lock(g_books.mutex);
      g_books.records.for_each([&](uint64_t number, uint32_t tag, const Record& record) {
        const bool asked = record.lifetime == lifetime && record.serial > after &&
                           tag == Key{KeyKind::kAddress, 0}.tag();
        if (!asked) return;
        size_t at = count < kMany ? count++ : kMany;
        // Keeps the oldest ones, sorted.
        while (at > 0 && questions[at - 1].serial > record.serial) {
          if (at < kMany) questions[at] = questions[at - 1];
          --at;
        }
        if (at < kMany) questions[at] = {number, record.serial};
      });
    }
    for (size_t i = 0; i < count; ++i) {
      unsigned type = 0;
      const CUresult answer = real<FunctionId::cuPointerGetAttribute>(
          static_cast<void*>(&type), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, questions[i].address);
      if (answer == CUDA_ERROR_INVALID_VALUE) {
        uncount({KeyKind::kAddress, questions[i].address}, questions[i].serial);
      }
    }
    if (count < kMany) return;
    after = questions[kMany - 1].serial;
  }
}

}  // namespace nvshare::interposer::memory
