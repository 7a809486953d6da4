#include "interposer/gate/records.h"

#include <sched.h>

#include "interposer/catch/current.h"
#include "interposer/gate/markers.h"
#include "interposer/link/state.h"

namespace nvshare::interposer::gate {
namespace {

constexpr size_t kRecordsPerChunk = 64;
constexpr size_t kMaxContexts = 256;
constexpr uint64_t kPatience = 1'000'000'000;  // with work that may be waiting for the host
constexpr uint64_t kStayAwake = 300'000;
constexpr uint64_t kLookAgain = 50'000;
constexpr uint32_t kOneByOne = 16;

struct Chunk {
  StreamRecord records[kRecordsPerChunk];
  Chunk* next = nullptr;
};

struct KnownContext {
  CUcontext context = nullptr;
  Gate* gate = nullptr;
  CUevent origin = nullptr;  // where the meter began to run, when it began in this context
  bool leaving = false;      // the driver is destroying it: nobody touches it
};

// Everything below is under this, but for what a record says of itself.
Mutex g_mutex;
Chunk* g_chunks = nullptr;
KnownContext g_contexts[kMaxContexts];
CUcontext g_primary[link::kMaxDevices];
std::atomic<bool> g_ending{false};
// Changes when a record goes: what threads remember of them is stale then.
std::atomic<uint32_t> g_version{1};

template <typename Visit>
void for_each_record(Visit visit) {
  for (Chunk* chunk = g_chunks; chunk != nullptr; chunk = chunk->next) {
    for (StreamRecord& record : chunk->records) {
      if (record.in_use) visit(record);
    }
  }
}

KnownContext* known(CUcontext context) {
  for (KnownContext& one : g_contexts) {
    if (context != nullptr && one.context == context) return &one;
  }
  return nullptr;
}

CUstream normal(Destination destination) {
  if (destination.stream != nullptr) return destination.stream;
  return destination.per_thread ? stream_per_thread() : stream_legacy();
}

bool is_default(CUstream stream) {
  return stream == stream_legacy() || stream == stream_per_thread();
}

StreamRecord* find(CUcontext context, CUstream stream, const Slot* thread) {
  StreamRecord* found = nullptr;
  for_each_record([&](StreamRecord& record) {
    if (record.orphan || record.stream != stream || record.thread != thread) return;
    if (is_default(stream) && record.context != context) return;
    found = &record;
  });
  return found;
}

StreamRecord* free_record() {
  for (Chunk* chunk = g_chunks; chunk != nullptr; chunk = chunk->next) {
    for (StreamRecord& record : chunk->records) {
      if (!record.in_use) return &record;
    }
  }
  auto* chunk = static_cast<Chunk*>(map_memory(sizeof(Chunk)));
  if (chunk == nullptr) return nullptr;
  chunk->next = g_chunks;
  g_chunks = chunk;
  return &chunk->records[0];
}

StreamRecord* make_record(Gate& gate, CUcontext context, CUstream stream, const Slot* thread) {
  StreamRecord* record = free_record();
  if (record == nullptr) return nullptr;
  record->gate = &gate;
  record->context = context;
  record->stream = stream;
  record->thread = thread;
  record->orphan = record->kept = false;
  // Counting goes on: who waited for the stream that was here before may still say what is done.
  record->done = record->marked = record->submitted.load();
  record->done_at = record->last_call_at = 0;
  record->one_by_one = 0;
  const Lock lock(record->mutex);
  record->first = record->outstanding = 0;
  record->last_placed_at = record->flight = 0;
  record->window = Window{};
  record->interval = record->elapsed = 0;
  record->in_use = true;
  reserve_marker(*record);
  return record;
}

// `alive`: its context is, with what the driver has for the record.
void release_record(StreamRecord& record, bool alive) {
  for (Marker& marker : record.ring) {
    if (alive && marker.event != nullptr) real<FunctionId::cuEventDestroy_v2>(marker.event);
    marker = Marker{};
  }
  if (alive && record.kept) {
    const catching::Within within(record.context);
    real<FunctionId::cuStreamDestroy_v2>(record.stream);
  }
  record.in_use = false;
  g_version.fetch_add(1);
}

CUcontext context_of(CUstream stream) {
  CUcontext context = nullptr;
  if (!is_default(stream) && real<FunctionId::cuStreamGetCtx>(stream, &context) == CUDA_SUCCESS &&
      context != nullptr) {
    return context;
  }
  real<FunctionId::cuCtxGetCurrent>(&context);
  return context;
}

// What the link's thread does with one record: retires markers, and places one behind work that has
// none.
void look_at(StreamRecord& record, uint64_t spacing, uint64_t now) {
  Lock lock(record.mutex);
  retire(record, now);
  const bool bare = record.marked.load() < record.submitted.load();
  if (!bare || record.thread != nullptr || (record.orphan && !record.kept)) return;
  if (now - record.last_placed_at < spacing &&
      (record.outstanding > 0 || spacing == kPlaceNothing)) {
    return;
  }
  place_or_ask(record, now);
  retire(record, now);
}

bool goes_on_one_by_one(StreamRecord& record) {
  if (record.one_by_one == 0) return false;
  const bool enough = record.in_flight() > Window::kMarkers;
  record.one_by_one = enough ? 0 : record.one_by_one - 1;
  return !enough;
}

// Nobody but its thread can place a marker in a thread's default stream, and it may not come back
// for long. The legacy stream waits for those streams: a marker there tells of this one as well.
void leave_to_legacy(StreamRecord& record) {
  const uint64_t submitted = record.submitted.load();
  {
    Lock lock(g_mutex);
    if (StreamRecord* legacy = find(record.context, stream_legacy(), nullptr)) {
      legacy->submitted.fetch_add(1);
      return note_done(record, submitted);
    }
  }
  wait_for_call({record.stream, true});
  note_done(record, submitted);
}

}  // namespace

std::atomic<int> g_captures{0};

bool is_captured(Destination destination) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = real<FunctionId::cuStreamIsCapturing>(normal(destination), &status);
  // The legacy stream is not to be used while others are captured. A broken context captures
  // nothing, and nobody is to wait for that to end.
  if (result != CUDA_SUCCESS) return leaves_it_open(result);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void note_context(Gate& gate, CUcontext context) {
  Lock lock(g_mutex);
  if (known(context) != nullptr) return;
  for (KnownContext& one : g_contexts) {
    if (one.context != nullptr) continue;
    one = {context, &gate};
    break;
  }
  make_record(gate, context, stream_legacy(), nullptr);
}

void note_primary(CUdevice device, CUcontext context) {
  if (device < 0 || device >= link::kMaxDevices) return;
  Lock lock(g_mutex);
  g_primary[device] = context;
}

Gate* gate_of_context(CUcontext context) {
  Lock lock(g_mutex);
  const KnownContext* found = known(context);
  return found != nullptr ? found->gate : nullptr;
}

bool has_context(const Gate& gate) {
  Lock lock(g_mutex);
  for (const KnownContext& one : g_contexts) {
    if (one.context != nullptr && one.gate == &gate) return true;
  }
  return false;
}

void note_stream(CUstream stream) {
  const CUcontext context = context_of(stream);
  Gate* gate = gate_of_context(context);
  if (gate == nullptr) {  // a green context that the program never asked for
    const catching::Within within(context);
    gate = within ? link::gate_of_current_device() : nullptr;
    if (gate == nullptr) return;
    note_context(*gate, context);
  }
  Lock lock(g_mutex);
  make_record(*gate, context, stream, nullptr);
}

bool note_thread_gone(const Slot& slot) {
  if (!g_mutex.lock_at_the_end()) return false;
  for_each_record([&](StreamRecord& record) {
    if (record.thread == &slot) record.orphan = true;
  });
  g_version.fetch_add(1);
  g_mutex.unlock();
  return true;
}

HoldMarkers::HoldMarkers() {
  g_mutex.lock();
}
HoldMarkers::~HoldMarkers() {
  g_mutex.unlock();
}

bool HoldMarkers::leaving(CUstream stream) {
  StreamRecord* record = find(nullptr, stream, nullptr);
  if (record == nullptr) return true;
  catching::Relaxed relaxed;
  const catching::Within within(record->context);
  Lock lock(record->mutex);
  // While running free nobody counted what was submitted: there may always be something in it.
  record->submitted.fetch_add(1);
  if (is_captured({stream, false})) {
    leave_to_markers(*record, now_ns());
  } else {
    place_or_ask(*record, now_ns());
  }
  record->orphan = true;
  // Once it is gone nobody can place a marker, and what has none would never be done.
  record->kept = record->marked < record->submitted;
  g_version.fetch_add(1);
  return !record->kept;
}

void HoldMarkers::gone(CUcontext context) {
  for_each_record([&](StreamRecord& record) {
    if (record.context == context) release_record(record, false);
  });
  KnownContext* found = known(context);
  if (found == nullptr) return;
  link::Origin& origin = found->gate->link->work.origin;
  if (origin.context.load() == context) origin.interval = 0;
  *found = {};
}

void set_leaving(CUcontext context, bool leaving) {
  Lock lock(g_mutex);
  if (KnownContext* found = known(context)) found->leaving = leaving;
}

CUcontext primary_of(CUdevice device) {
  if (device < 0 || device >= link::kMaxDevices) return nullptr;
  Lock lock(g_mutex);
  return g_primary[device];
}

CUcontext HoldMarkers::primary_gone(CUdevice device) {
  if (device < 0 || device >= link::kMaxDevices) return nullptr;
  const CUcontext context = g_primary[device];
  g_primary[device] = nullptr;
  if (context != nullptr) gone(context);
  return context;
}

StreamRecord* record_for(Slot& slot, Gate& gate, Destination destination) {
  if (is_captured(destination)) return nullptr;
  const CUstream stream = normal(destination);
  CUcontext context = nullptr;
  if (is_default(stream)) real<FunctionId::cuCtxGetCurrent>(&context);
  const uint32_t version = g_version.load(std::memory_order_acquire);
  if (slot.last_record != nullptr && slot.records_version == version &&
      slot.last_stream == stream && slot.last_context == context) {
    return slot.last_record;
  }
  const Slot* thread = stream == stream_per_thread() ? &slot : nullptr;
  const CUcontext home = context != nullptr ? context : context_of(stream);
  Lock lock(g_mutex);
  StreamRecord* record = find(home, stream, thread);
  if (record == nullptr) record = make_record(gate, home, stream, thread);
  slot.last_record = record;
  slot.last_stream = stream;
  slot.last_context = context;
  slot.records_version = version;
  return record;
}

StreamRecord* known_record(Slot& slot, Destination destination) {
  const CUstream stream = normal(destination);
  CUcontext context = nullptr;
  if (is_default(stream)) real<FunctionId::cuCtxGetCurrent>(&context);
  Lock lock(g_mutex);
  return find(context, stream, stream == stream_per_thread() ? &slot : nullptr);
}

void for_records_of(CUcontext context, void (*visit)(StreamRecord&, void*), void* argument) {
  Lock lock(g_mutex);
  for_each_record([&](StreamRecord& record) {
    if (record.context == context) visit(record, argument);
  });
}

void wait_for_room(StreamRecord& record) {
  if (!is_full(record)) return;
  const uint64_t begin = now_ns();
  catching::Relaxed relaxed;
  for (uint64_t now = begin; now - begin < kPatience; now = now_ns()) {
    {
      Lock lock(record.mutex);
      retire(record, now);
      if (!is_full(record)) return;
    }
    // The GPU may run out of work soon: asleep, one is often late.
    if (now - begin < kStayAwake) {
      sched_yield();
    } else {
      sleep_ns(kLookAgain);
    }
  }
}

// Where it is slower than the GPU, that is idle until the next call, since a moment that only a
// marker right behind the call before can tell. So for a while calls have one each, until there are
// more in flight than can have.
void note_pause(StreamRecord& record, uint64_t now) {
  catching::Relaxed relaxed;
  Lock lock(record.mutex);
  retire(record, now);
  if (record.outstanding == 0) record.one_by_one = kOneByOne;
}

void note_submission(StreamRecord& record) {
  const uint64_t submitted = record.submitted.fetch_add(1) + 1;
  const uint64_t since = submitted - record.marked.load(std::memory_order_relaxed);
  const bool early = since < Window::stride(room_of(record)) && record.thread == nullptr;
  if (early && record.one_by_one.load(std::memory_order_relaxed) == 0) return;
  catching::Relaxed relaxed;
  {
    Lock lock(record.mutex);
    const uint64_t now = now_ns();
    retire(record, now);  // what is behind a marker counts
    if (early && !goes_on_one_by_one(record)) return;
    const catching::Within within(record.context);
    if (within && place(record, now) == CUDA_SUCCESS) return;
  }
  // Others are looked at by the link's thread.
  if (record.thread != nullptr) leave_to_legacy(record);
}

// From the thread that made the call: what is in the stream may wait for that very thread, and then
// this never ends. Who has no memory for a record has none for much else.
void wait_for_call(Destination destination) {
  catching::Relaxed relaxed;
  while (!is_captured(destination) &&
         real<FunctionId::cuStreamSynchronize>(normal(destination)) == CUDA_ERROR_OUT_OF_MEMORY) {
    sleep_ns(kLookAgain);
  }
}

void place_origin(StreamRecord& record) {
  catching::Relaxed relaxed;
  const catching::Within within(record.context);
  link::Origin& origin = record.gate->link->work.origin;
  origin.interval.store(0);
  Lock lock(g_mutex);
  KnownContext* context = known(record.context);
  if (context == nullptr || context->leaving) return;
  if (context->origin == nullptr &&
      real<FunctionId::cuEventCreate>(&context->origin, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
    context->origin = nullptr;
    return;
  }
  if (real<FunctionId::cuEventRecord>(context->origin, record.stream) != CUDA_SUCCESS) return;
  origin.event = context->origin;
  origin.context = record.context;
  origin.started_at = now_ns();
  origin.interval.store(++origin.intervals, std::memory_order_release);
}

uint64_t submitted_before(StreamRecord& record) {
  const uint64_t submitted = record.submitted.load();
  if (record.marked.load() < submitted && record.thread == nullptr &&
      !is_captured({record.stream, false})) {
    catching::Relaxed relaxed;
    const catching::Within within(record.context);
    Lock lock(record.mutex);
    if (within) place(record, now_ns());
  }
  return submitted;
}

void note_done(StreamRecord& record, uint64_t submitted) {
  note_done_at(record, submitted, now_ns());
}

bool anything_in_flight(Gate& gate, uint64_t spacing, uint64_t now, Done* done) {
  bool in_flight = false;
  *done = {};
  Lock lock(g_mutex);
  catching::Relaxed relaxed;
  if (g_ending) {
    done->since = now;
    return false;
  }
  const uint64_t interval = gate.link->work.origin.interval.load();
  const uint64_t started_at = gate.link->work.origin.started_at.load();
  bool all_told = interval != 0;
  for_each_record([&](StreamRecord& record) {
    if (record.gate != &gate) return;
    const KnownContext* context = known(record.context);
    if (context != nullptr && context->leaving) {
      in_flight = true;  // as long as the driver waits for what is in it
      return;
    }
    if (record.busy() || record.outstanding > 0) look_at(record, spacing, now);
    const Lock hold(record.mutex);
    if (record.busy()) {
      in_flight = true;
      const uint64_t expected = record.last_placed_at + record.flight;
      if (expected > done->expected) done->expected = expected;
    } else if (record.orphan) {
      release_record(record, true);
      return;
    }
    if (record.done_at.load() > done->since) done->since = record.done_at.load();
    if (record.interval != interval && record.done_at.load() > started_at) all_told = false;
    if (record.interval == interval && record.elapsed > done->elapsed) {
      done->elapsed = record.elapsed;
    }
  });
  // What ran in another context is not on the same clock.
  if (!all_told) done->elapsed = 0;
  return in_flight;
}

void assume_all_busy(Gate& gate) {
  Lock lock(g_mutex);
  for_each_record([&](StreamRecord& record) {
    if (record.gate == &gate && record.thread == nullptr && !record.orphan) {
      record.submitted.fetch_add(1);
    }
  });
}

void stop_looking() {
  const bool locked = g_mutex.lock_at_the_end();
  g_ending = true;
  if (locked) g_mutex.unlock();
}

bool stopped_looking() {
  return g_ending;
}

void forget_records_after_fork() {
  g_mutex.reset_after_fork();
  for_each_record([](StreamRecord& record) {
    record.mutex.reset_after_fork();
    record.in_use = false;
  });
  for (KnownContext& one : g_contexts) one = {};
  for (CUcontext& primary : g_primary) primary = nullptr;
  g_captures = 0;
  g_version.fetch_add(1);
}

}  // namespace nvshare::interposer::gate
