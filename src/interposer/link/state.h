#pragma once

#include "interposer/gate/meter.h"
#include "interposer/gate/records.h"
#include "interposer/link/link.h"
#include "wire/messages.h"
#include "wire/page.h"

// A device's connection to the scheduler, as the files of the interposer share it.
namespace nvshare::interposer::link {

inline constexpr int kMaxDevices = 64;
inline constexpr int kMaxOrders = 64;

// In nanoseconds, between two looks for a scheduler. The second one is the most, for a scheduler
// that is there and does not answer.
inline constexpr uint64_t kLookForScheduler = 1'000'000'000;
inline constexpr uint64_t kMostPatientLook = 16 * kLookForScheduler;

enum class Phase : uint32_t {
  Unmanaged,  // no connection, for which Absence has the reason: the gate stands open or closed
  Idle,       // connected, nothing asked for
  Asked,
  Holding,
  Stopping,  // the gate is closed, work in flight runs out
};

// A thread's question for memory.
struct Request {
  // Again: the connection ended first, and the bytes are not counted any more.
  enum Answer : uint32_t { kNobody, kWaits, kGiven, kAbsent, kRefused, kAgain };
  Word answer{kNobody};
  uint64_t number = 0;
  uint64_t bytes = 0;
  uint64_t connection = 0;  // on which it was asked
  bool movable = false;
};

// What the scheduler wants moved.
struct Order {
  uint64_t number = 0;
  uint64_t bytes = 0;
  bool out = false;
};

// What is the same for as long as the process lives.
struct Device {
  CUdevice number = -1;
  CUuuid uuid = {};
  uint64_t memory = 0;
  uint64_t own_limit = 0;  // 0: none
  bool bad_limit = false;  // of its own: it is not understood
};

// Why a link has no connection.
enum class Absence : uint32_t {
  NoScheduler,  // nobody answers: the program runs by itself, or waits, as it was told
  Refused,      // the scheduler does not take the program: the program waits
  // Waiting is of no use. A program without a context gets CUDA's error, and one with a context
  // waits, because it cannot go on.
  RefusedForGood,
  // The scheduler has closed the connection, and is being asked again. Until it has answered, an
  // allocation waits, because a program could end its connections to be without a limit.
  Asking,
};

// The link's thread changes it with the mutex held, and reads it as it likes.
struct Connection {
  int socket = -1;
  std::atomic<uint64_t> number{0};         // counts them
  std::atomic<wire::Page*> page{nullptr};  // null: nobody looks at it
  void* page_memory = nullptr;             // where it is mapped, now or before
  std::atomic<uint64_t> lost_at{0};        // when the scheduler went; 0: there was none yet
  // While the phase is Unmanaged.
  std::atomic<Absence> absence{Absence::NoScheduler};
};

struct Grant {
  uint64_t number = 0;  // the last one that was taken or given back, of this connection
  uint64_t budget = 0;
  wire::Watch watch = wire::Watch::Metered;
  bool dropped = false;  // the scheduler wants the grant back
  uint64_t drop = 0;     // the last one that it wanted back, of this connection
  gate::Meter meter;
  gate::Grace grace;
  uint64_t total_used = 0;
};

// What the scheduler was told, and must not hear twice.
struct Told {
  uint16_t minor = 0;  // version of the protocol that the scheduler speaks
  bool ipc = false;    // the scheduler knows this process's name, on this connection
  uint64_t arena = 0;  // host memory, as the scheduler has been told
  // Some of what could leave cannot any more, on this connection. The scheduler learns that from a
  // message, which credit would overtake: such memory is not freed into it.
  bool turned_pinned = false;
  uint64_t next_request = 1;
};

// The event at which the meter began to run. 0: there is none for the present interval.
struct Origin {
  std::atomic<uint64_t> interval{0};
  std::atomic<CUevent> event{nullptr};
  std::atomic<CUcontext> context{nullptr};
  std::atomic<uint64_t> started_at{0};
  uint64_t intervals = 0;
};

// What threads that submit see of the grant without the mutex.
struct Work {
  std::atomic<bool> busy{false};                     // what the meter says
  std::atomic<uint64_t> ahead{gate::Ahead::kLeast};  // what may be in flight now
  Origin origin;
  std::atomic<bool> free{false};     // nothing is counted
  std::atomic<bool> unnoted{false};  // what was submitted while free is in nobody's books
  std::atomic<uint64_t> passes_changed_at{0};
};

// The threads at the gate.
struct Waiters {
  // Changes when the gate may have opened: they wait on this, or while there is a scheduler on the
  // page's bell, which the scheduler rings as well.
  Word turn{0};
  std::atomic<uint32_t> count{0};
  std::atomic<uint64_t> held{0};
  std::atomic<uint64_t> holds{0};
};

// Memory, as the scheduler has been told: all of it, what of that can never leave the GPU, and what
// is not on it. Written by all threads.
struct Book {
  std::atomic<wire::Backend> backend{wire::Backend::Native};
  std::atomic<uint64_t> allocated{0};
  std::atomic<uint64_t> pinned{0};
  std::atomic<uint64_t> absent{0};
  std::atomic<uint64_t> rounding{0};  // memory_rounding()
};

// What the link's thread alone has.
struct Thread {
  wire::WhenLost when_lost = wire::WhenLost::Run;
  bool looking = false;  // running free, and no calls pass
  uint64_t passes_seen = 0;
  // What the scheduler's sign of life was, and when it changed; how long until it is looked for
  // again.
  uint64_t alive = 0;
  uint64_t alive_at = 0;
  uint64_t look_again = 0;
  uint64_t refused_at = 0;  // the last time
  // When, without a scheduler, it next tries to have all of its memory on the GPU; and how long it
  // waited for that.
  uint64_t alone_at = 0;
  uint64_t alone_wait = 0;
  Order orders[kMaxOrders];  // in the order in which they came
  int order_count = 0;
  uint64_t close_for = 0;  // a request that is answered once the grant is back; 0: none
  uint64_t drained = 0;    // how long the last wait for the GPU took
  bool lost = false;       // the connection, while memory was moved
};

struct Link {
  gate::Gate gate;
  Device device;
  std::atomic<bool> made{false};

  // Who holds a grant decides under this mutex. Whoever is woken first takes a grant, the link's
  // thread or one that waits at the gate; the link's thread alone gives it back.
  Mutex mutex;
  std::atomic<Phase> phase{Phase::Unmanaged};  // written with the mutex held
  std::atomic<bool> moving{false};             // memory is; written with the mutex held
  Grant grant GUARDED_BY(mutex);
  Told told GUARDED_BY(mutex);
  Connection connection;
  Work work;
  Waiters waiters;
  Book book;
  Thread thread;
  Request requests[wire::kMostRequests];  // given out with the mutex held
  Word leaving{0};                        // how far the end of the process is (end.cpp)
};

// Sends to the scheduler. A message that cannot be sent would leave the
// two ends with different ideas: the connection ends, and the next hello puts things right.
void tell(Link& link, const wire::Header& message) REQUIRES(link.mutex);

// Opens the gate, and wakes whoever waits there.
void open_gate(Link& link, uint32_t state);
// They look at the gate again.
void wake_the_waiting(Link& link);
// Tells the scheduler, by the page, how it stands.
void publish(Link& link, uint64_t now) REQUIRES(link.mutex);
// A grant that was not taken is given back.
void give_unused_back(Link& link, uint64_t grant, bool more_work) REQUIRES(link.mutex);
// With the phase Asked: a grant begins, unless memory is being moved.
// `watch` is how the scheduler watches now.
void begin_grant(Link& link, uint64_t grant, uint64_t budget, wire::Watch watch)
    REQUIRES(link.mutex);

// A grant that is in the page already, whose message the link's thread has not read yet, or had no
// use for before.
void take_offer(Link& link) REQUIRES(link.mutex);

// Whether any device is used yet.
bool any_link();

// Waits until the gate may have opened, asking for a grant when nobody has. May return early. At
// the end of the process it ends the gate instead.
void wait_for_grant(Link& link);

// Something is about to be submitted, or was: the meter runs.
void start_meter(Link& link, gate::StreamRecord& record);
inline void note_busy(Link& link, gate::StreamRecord& record) {
  if (!link.work.busy.load()) start_meter(link, record);
}

// Nothing was in flight at `at`, after `elapsed` by the GPU's clock (0: not known): the meter
// stops, unless something is in flight after all. For `spacing` see
// anything_in_flight().
void stop_meter(Link& link, uint64_t at, uint64_t elapsed, uint64_t spacing) REQUIRES(link.mutex);

// The program waited for the GPU: when that left nothing in flight, the meter stops, and not only
// when the link's thread looks next.
void note_waited(Link& link);

// The same before a call that comes a while after the last one: the GPU may have run out of work.
void note_gap(Link& link, gate::StreamRecord& record);

// memory.cpp, for the link's thread alone: does what was ordered. The connection may turn out
// to be lost meanwhile (`lost`).
void take_order(Link& link, const Order& order);
void run_orders(Link& link);
// Without a scheduler: brings back by itself what is absent. True when nothing is any more. Else it
// gives back what it has brought, or `gives_way` with all that can leave.
bool bring_all_back(Link& link, bool gives_way);

// ipc.cpp: on a new connection the scheduler learns the process's name again.
void ipc_announce_again(Link& link) REQUIRES(link.mutex);

// end.cpp: the process ends. What it has on the GPU is given back before the kernel takes the
// process apart, which takes seconds where there is much pinned host memory.
// While the GPU may still be looked at: who has just been at work holds a grant.
void give_back_first(Link& link);
void begin_to_leave(Link& link);
// Not for ever; what is not given back by then the kernel gives back.
void wait_until_left(Link& link);

// thread.cpp: nothing of the link is on the GPU, and no way leads there: the grant goes back.
void give_grant_back(Link& link, const gate::Done& done) REQUIRES(link.mutex);
// Takes the messages that have arrived; false when the connection is gone. The one place that reads
// the socket, also while memory moves or the GPU is waited for. It starts neither: orders are kept
// for run_orders(), and a request that the gate must close for ends the reading.
bool read_messages(Link& link);
// With the gate closed: waits until nothing of the link is on the GPU or on its way there, and says
// since when that is so.
gate::Done drain(Link& link);

// connect.cpp: connects and says hello; true when the scheduler welcomed the link, which is then
// Idle. Otherwise the link knows why not (Absence); the gate is closed when the program is refused,
// and as it was when there is no scheduler.
bool connect_link(Link& link);
// Whether a scheduler is there and does not take the program.
bool is_refused(const Link& link);
// Whether a connection has just ended, and allocations wait for the next one.
bool is_asking(const Link& link);
// The link has no thread to serve it, now or later: the program is refused for good.
void be_without_thread(Link& link);
// Serves the connection for as long as the process lives.
void* serve_link(void* link);

void forget_links_after_fork();

}  // namespace nvshare::interposer::link
