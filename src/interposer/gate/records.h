#pragma once

#include "interposer/gate/gate.h"
#include "interposer/gate/meter.h"

// What is known of the streams of a process: how much was submitted to each while metered, and how
// much of that is done, by completion markers (events of ours) in the stream. Markers are placed by
// the thread that submits, every few launches, and behind each where the GPU may run out of work;
// and by the link's thread behind the last launch, to notice that a stream is idle. Nothing is ever
// placed into a capture.
namespace nvshare::interposer::gate {

struct Marker {
  CUevent event = nullptr;
  uint64_t count = 0;  // stands behind so many submissions
  uint64_t placed_at = 0;
  uint64_t behind = 0;  // so many of them were not done; 0: there is nothing to learn from it
  bool like_all = false;
};

struct StreamRecord {
  // Who it is. Of the default stream of a thread only that thread can place markers. A stream that
  // was destroyed with work in it stays, as an orphan, until that is done.
  Gate* gate = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  const Slot* thread = nullptr;  // of whom it is the default stream
  bool orphan = false;
  bool kept = false;  // an orphan that could not be marked: the driver has not destroyed it yet
  bool in_use = false;

  std::atomic<uint64_t> submitted{0};
  std::atomic<uint64_t> done{0};     // of the submitted
  std::atomic<uint64_t> marked{0};   // of the submitted, those with a marker behind them
  std::atomic<uint64_t> done_at{0};  // when that was seen
  std::atomic<uint64_t> last_call_at{0};
  std::atomic<uint32_t> one_by_one{0};  // so many more markers may stand behind single calls

  Mutex mutex;  // of what follows
  Marker ring[Window::kMarkers] GUARDED_BY(mutex);
  uint32_t first GUARDED_BY(mutex) = 0;  // the oldest outstanding marker
  std::atomic<uint32_t> outstanding{0};
  uint64_t last_placed_at GUARDED_BY(mutex) = 0;
  uint64_t flight GUARDED_BY(mutex) = 0;  // how long the last marker that is done took
  Window window GUARDED_BY(mutex);
  uint64_t interval GUARDED_BY(mutex) = 0;  // of the meter, which `elapsed` is about
  uint64_t elapsed GUARDED_BY(mutex) =
      0;  // from the meter's origin to the last marker that is done, by the GPU

  bool busy() const { return done.load() < submitted.load(); }
  // What is done is asked first: it may become more meanwhile.
  uint64_t in_flight() const {
    const uint64_t before = done.load();
    return submitted.load() - before;
  }
};

// A context was made on the gate's device. Noting it again does nothing.
void note_context(Gate& gate, CUcontext context);
// The gate of the device that a context was made on; null when it was not seen.
Gate* gate_of_context(CUcontext context);
// Whether the program has a context on the gate's device.
bool has_context(const Gate& gate);
// It is its device's primary context.
void note_primary(CUdevice device, CUcontext context);
// A stream was made.
void note_stream(CUstream stream);
// A thread is gone, and its default streams with it. False when nobody could be told.
bool note_thread_gone(const Slot& slot);

// Held while the driver destroys a stream, or a stream begins or joins a capture: nobody places a
// marker meanwhile.
class HoldMarkers {
 public:
  HoldMarkers();
  ~HoldMarkers();
  // A stream is about to be destroyed; what is in it still runs. False: it is not to be destroyed
  // now, as nobody could tell the end of that; the link's thread does it then.
  [[nodiscard]] bool leaving(CUstream stream);
  // A context is gone, and all that was in it.
  void gone(CUcontext context);
  // The device's primary context is; answers which that was, if it was noted.
  CUcontext primary_gone(CUdevice device);
};

// The driver is destroying a context, which may take as long as what is in it: nobody touches it
// meanwhile, and it counts as busy.
void set_leaving(CUcontext context, bool leaving);
// The device's primary context, when it was noted; null otherwise.
CUcontext primary_of(CUdevice device);

// How many captures are going on, as far as was seen: while none are, nobody asks the driver.
extern std::atomic<int> g_captures;
// Whether a call to there would be recorded instead of done.
bool is_captured(Destination destination);

// Where a metered call goes; null when it is recorded into a capture, or there is no memory.
StreamRecord* record_for(Slot& slot, Gate& gate, Destination destination);
// Waits while there is too much in flight.
void wait_for_room(StreamRecord& record);
// The program did something else before its next call.
void note_pause(StreamRecord& record, uint64_t now);
// The meter begins to run with a call to there, which has not been made yet.
void place_origin(StreamRecord& record);
// The call has been made: counted, and a marker behind it when it is time for one.
void note_submission(StreamRecord& record);
// The same for a call that has no record: it is done when this returns.
void wait_for_call(Destination destination);

// For calls that wait: what was submitted before is done after them. Places a marker, so that the
// GPU tells when.
uint64_t submitted_before(StreamRecord& record);
void note_done(StreamRecord& record, uint64_t submitted);
// The record of a stream if there is one already.
StreamRecord* known_record(Slot& slot, Destination destination);
// Calls `visit` for every record of the context.
void for_records_of(CUcontext context, void (*visit)(StreamRecord&, void*), void* argument);

// For the link's thread. Looks at the markers of the gate's streams, and places missing ones behind
// work that is older than `spacing` (kPlaceNothing: never). Whether anything that was submitted is
// not done; when nothing is, since when, as it was seen, and how long it took from the meter's
// origin, as the GPU tells it (0: not known).
inline constexpr uint64_t kPlaceNothing = ~uint64_t{0};
struct Done {
  uint64_t since = 0;
  uint64_t elapsed = 0;
  uint64_t expected = 0;  // while something is: when it will be done if it takes as long as before
};
bool anything_in_flight(Gate& gate, uint64_t spacing, uint64_t now, Done* done);
// While running free nothing was noted: every stream is taken for busy until a marker in it says
// otherwise.
void assume_all_busy(Gate& gate);

void forget_records_after_fork();
// The process is about to end, and the driver with it: nobody looks at the GPU any more.
void stop_looking();
bool stopped_looking();

}  // namespace nvshare::interposer::gate
