#include "interposer/gate/markers.h"

#include "interposer/catch/current.h"
#include "interposer/link/state.h"

namespace nvshare::interposer::gate {
namespace {

bool is_about_captures(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

void raise(std::atomic<uint64_t>& value, uint64_t to) {
  uint64_t seen = value.load();
  while (seen < to && !value.compare_exchange_weak(seen, to)) {
  }
}

// The context is broken, or the stream is none: nothing can be learnt of it.
void take_for_done(StreamRecord& record, uint64_t now) REQUIRES(record.mutex) {
  record.outstanding = 0;
  record.marked = record.submitted.load();
  note_done_at(record, record.submitted, now);
}

Marker& marker_at(StreamRecord& record, uint32_t from_oldest) REQUIRES(record.mutex) {
  return record.ring[(record.first + from_oldest) % Window::kMarkers];
}

// How far behind the meter's origin a marker is that is done.
void note_elapsed(StreamRecord& record, CUevent marker) REQUIRES(record.mutex) {
  const link::Origin& origin = record.gate->link->work.origin;
  const uint64_t interval = origin.interval.load(std::memory_order_acquire);
  if (interval == 0 || origin.context.load() != record.context) return;
  float milliseconds = 0;
  if (real<FunctionId::cuEventElapsedTime>(&milliseconds, origin.event.load(), marker) !=
          CUDA_SUCCESS ||
      milliseconds < 0) {
    return;
  }
  const auto elapsed = static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  if (record.interval != interval || record.elapsed < elapsed) record.elapsed = elapsed;
  record.interval = interval;
}

CUresult make_event(CUevent& event) {
  const CUresult result = real<FunctionId::cuEventCreate>(&event, CU_EVENT_DEFAULT);
  if (result != CUDA_SUCCESS) event = nullptr;
  return result;
}

// The marker behind the newest has an event: its own, a new one, or one that is not in use.
CUresult equip_next(StreamRecord& record) REQUIRES(record.mutex) {
  Marker& next = marker_at(record, record.outstanding);
  if (next.event != nullptr) return CUDA_SUCCESS;
  const CUresult result = make_event(next.event);
  if (result == CUDA_SUCCESS) return result;
  for (uint32_t i = record.outstanding + 1; i < Window::kMarkers; ++i) {
    Marker& unused = marker_at(record, i);
    if (unused.event == nullptr) continue;
    next.event = unused.event;
    unused.event = nullptr;
    return CUDA_SUCCESS;
  }
  return result;
}

// No marker could be placed, for a reason.
void ask(StreamRecord& record, CUresult reason, uint64_t now) REQUIRES(record.mutex) {
  if (is_about_captures(reason)) return;
  const uint64_t submitted = record.submitted.load();
  const CUresult result = real<FunctionId::cuStreamQuery>(record.stream);
  if (leaves_it_open(result)) return;
  if (result != CUDA_SUCCESS) return take_for_done(record, now);
  // A marker in the legacy stream stands behind the threads' default streams as well, of which the
  // stream need not speak. It is tried again.
  if (record.stream == stream_legacy() && leaves_it_open(reason)) return;
  raise(record.marked, submitted);
  note_done_at(record, submitted, now);
}

uint64_t ahead_of(const StreamRecord& record) {
  return record.gate->link->work.ahead.load(std::memory_order_relaxed);
}

// Otherwise the newest moves back. So it does where every call is marked, once there are many,
// until it stands where it would anyway: else they would all be at the beginning.
bool has_place_for_another(StreamRecord& record) REQUIRES(record.mutex) {
  const uint32_t outstanding = record.outstanding;
  if (outstanding < Window::kMarkers / 2) return true;
  if (outstanding == Window::kMarkers) return false;
  const uint64_t stands_for =
      marker_at(record, outstanding - 1).count - marker_at(record, outstanding - 2).count;
  return stands_for >= Window::stride(room_of(record));
}

}  // namespace

uint32_t room_of(const StreamRecord& record) {
  return record.window.launches(ahead_of(record));
}

bool is_full(const StreamRecord& record) {
  return record.outstanding.load(std::memory_order_relaxed) > 0 &&
         record.in_flight() >= room_of(record);
}

bool leaves_it_open(CUresult result) {
  return result == CUDA_ERROR_NOT_READY || result == CUDA_ERROR_OUT_OF_MEMORY ||
         is_about_captures(result);
}

void reserve_marker(StreamRecord& record) {
  catching::Relaxed relaxed;
  const catching::Within within(record.context);
  if (within && record.ring[0].event == nullptr) make_event(record.ring[0].event);
}

void note_done_at(StreamRecord& record, uint64_t count, uint64_t now) {
  raise(record.done, count);
  raise(record.done_at, now);
}

void retire(StreamRecord& record, uint64_t now) {
  while (record.outstanding > 0) {
    const Marker& oldest = marker_at(record, 0);
    const CUresult result = real<FunctionId::cuEventQuery>(oldest.event);
    if (result == CUDA_ERROR_CAPTURED_EVENT) {  // the stream joined a capture just before it
      record.outstanding = 0;
      record.marked = record.done.load();
      return;
    }
    if (leaves_it_open(result)) return;
    if (result != CUDA_SUCCESS) return take_for_done(record, now);
    // One that was placed while we waited for the mutex is younger than `now`.
    record.flight = now > oldest.placed_at ? now - oldest.placed_at : 0;
    if (oldest.behind > 0 && record.flight > 0) {
      record.window.learn(record.flight, oldest.behind, oldest.like_all);
    }
    note_done_at(record, oldest.count, now);
    note_elapsed(record, oldest.event);
    record.first = (record.first + 1) % Window::kMarkers;
    --record.outstanding;
  }
}

CUresult place(StreamRecord& record, uint64_t now) {
  if (is_captured({record.stream, false})) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const uint64_t submitted = record.submitted.load();
  const uint64_t done = record.done.load();
  bool another = has_place_for_another(record);
  if (another) {
    const CUresult result = equip_next(record);
    if (result != CUDA_SUCCESS && record.outstanding == 0) return result;
    if (result != CUDA_SUCCESS) {
      another = false;
      record.window.limit(record.outstanding);
    }
  }
  Marker& marker = marker_at(record, record.outstanding - (another ? 0 : 1));
  const CUresult result = real<FunctionId::cuEventRecord>(marker.event, record.stream);
  if (result != CUDA_SUCCESS) return result;
  marker.count = submitted;
  marker.placed_at = now;
  marker.behind = submitted > done ? submitted - done : 0;
  marker.like_all = record.window.is_like_all(marker.behind, ahead_of(record));
  record.marked = submitted;
  record.last_placed_at = now;
  if (another) ++record.outstanding;
  return CUDA_SUCCESS;
}

void place_or_ask(StreamRecord& record, uint64_t now) {
  const catching::Within within(record.context);
  if (!within) {
    if (!leaves_it_open(within.result())) take_for_done(record, now);
    return;
  }
  const CUresult result = place(record, now);
  if (result != CUDA_SUCCESS) return ask(record, result, now);
  // It was placed long after what it stands behind.
  marker_at(record, record.outstanding - 1).behind = 0;
}

void leave_to_markers(StreamRecord& record, uint64_t now) {
  if (record.outstanding == 0) return take_for_done(record, now);
  record.marked = record.submitted.load();
  marker_at(record, record.outstanding - 1).count = record.marked;
}

}  // namespace nvshare::interposer::gate
