// The thread that serves a device's connection: takes grants and gives them back, runs the meter,
// and looks for the scheduler when it is away.
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "interposer/gate/records.h"
#include "interposer/link/state.h"
#include "interposer/memory/ipc_answer.h"
#include "interposer/moving/swap/swap.h"
#include "wire/channel.h"

namespace nvshare::interposer::link {
namespace {

constexpr uint64_t kMicrosecond = 1'000;
constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1'000'000'000;

constexpr uint64_t kLook = 250 * kMicrosecond;  // at the meter, while metered
constexpr uint64_t kTailSpacing =
    200 * kMicrosecond;                             // between markers that only look for idleness
constexpr uint64_t kFirstGrace = 5 * kMillisecond;  // before the first submission
constexpr uint64_t kFreeLook = 50 * kMillisecond;   // running free, whether it runs at all
constexpr uint64_t kPatience = 500 * kMillisecond;  // with calls that are on their way in
constexpr uint64_t kLetThrough = 5 * kMillisecond;
constexpr uint64_t kWakeEarly = 80 * kMicrosecond;  // asleep, one may be this late
constexpr uint64_t kStayAwake = 500 * kMicrosecond;
constexpr uint64_t kLookAgain = 20 * kMicrosecond;
constexpr uint64_t kGivesWayFrom = 3 * kSecond;  // between tries to run alone
constexpr uint64_t kHung = 5 * kSecond;  // without a sign of life the scheduler is taken for gone

// Who finds it closed and goes to sleep does both under the lock, and would miss the bell
// otherwise.
void open_locked(Link& link, uint32_t state) {
  Lock lock(link.mutex);
  open_gate(link, state);
}

// --- giving the GPU back -----------------------------------------------------------------------

// Running free, nothing was noted of what was submitted: once nobody is on the way any more, every
// stream is taken for busy. False while somebody is.
bool out_of_the_open(Link& link) {
  if (!gate::nobody_inside(link.gate)) return false;
  if (link.work.unnoted) gate::assume_all_busy(link.gate);
  link.work.unnoted = false;
  return true;
}

// Somebody waits for the GPU, so the end is not to be missed; nor is a processor to be kept from
// others for as long as that takes. Asleep until shortly before the end is expected, then awake.
void wait_for_end(uint64_t expected, uint64_t now, uint64_t* awake_since) {
  if (expected > now + 2 * kWakeEarly) {
    const uint64_t left = expected - now - kWakeEarly;
    sleep_ns(left < kMillisecond ? left : kMillisecond);
    *awake_since = 0;
    return;
  }
  if (*awake_since == 0) *awake_since = now;
  if (now - *awake_since < kStayAwake) {
    sched_yield();
  } else {
    sleep_ns(kLookAgain);
  }
}

}  // namespace

// Work in flight may depend on a thread that waits at the gate (a stream that
// waits for a value the host writes): when nothing moves for long (Stuck), whoever waits is let
// through for a moment.
gate::Done drain(Link& link) {
  gate::Done done;
  uint64_t served_at = now_ns();
  gate::Stuck stuck(served_at);
  uint64_t awake_since = 0;
  const bool connected = link.phase == Phase::Stopping;
  for (;;) {
    const uint64_t now = now_ns();
    if (out_of_the_open(link) && !gate::anything_in_flight(link.gate, 0, now, &done)) break;
    if (stuck.seems(done.since, now) && link.waiters.count.load() > 0 &&
        link.book.absent.load() == 0) {
      open_locked(link, gate::kMetered);
      sleep_ns(kLetThrough);
      gate::close_gate(link.gate);
      stuck.let_through(now_ns());
    }
    wait_for_end(done.expected, now, &awake_since);
    if (now - served_at < kLook) continue;
    served_at = now;
    // Without a scheduler there is nobody to wait for.
    if (connected && link.connection.socket >= 0 && !read_messages(link)) break;
    Lock lock(link.mutex);
    publish(link, now);
  }
  return done;
}

namespace {

uint64_t seen(const gate::Done& done, uint64_t now) {
  return done.since != 0 && done.since < now ? done.since : now;
}

// Closes the gate, lets what is in flight run out and gives the grant back.
void stop(Link& link) {
  {
    Lock lock(link.mutex);
    if (link.phase != Phase::Holding) return;  // given back at the end of the process
    link.phase = Phase::Stopping;
  }
  const uint64_t begin = now_ns();
  gate::close_gate(link.gate);
  const gate::Done done = drain(link);
  link.thread.drained = now_ns() - begin;
  Lock lock(link.mutex);
  if (gate::stopped_looking()) {  // so nobody can tell whether it has run out
    link.phase = Phase::Holding;
    gate::end_gate(link.gate);
    wake_the_waiting(link);
    return;
  }
  give_grant_back(link, done);
}

}  // namespace

void give_grant_back(Link& link, const gate::Done& done) {
  const uint64_t now = now_ns();
  link.grant.meter.idle(seen(done, now), done.elapsed);
  link.work.busy = false;
  link.work.origin.interval = 0;
  publish(link, now);
  auto message = wire::make<wire::Released>();
  message.grant = link.grant.number;
  message.used = link.grant.meter.used(now);
  message.more_work = link.waiters.count.load() > 0 && link.gate.state.load() != gate::kEnded;
  if (message.more_work != 0) link.grant.grace.asked(now);
  const uint64_t gaps = link.grant.meter.gaps() / 1000;
  message.gaps = gaps < UINT32_MAX ? static_cast<uint32_t>(gaps) : UINT32_MAX;
  link.grant.total_used += message.used;
  link.grant.meter.begin(now);
  link.phase = message.more_work != 0 ? Phase::Asked : Phase::Idle;
  tell(link, message.header);
}

namespace {

// --- messages ----------------------------------------------------------------------------------

void take(Link& link, const wire::Grant& message) {
  Lock lock(link.mutex);
  if (message.grant <= link.grant.number) return;  // taken already, by whoever waited for it
  if (link.phase == Phase::Asked)
    return begin_grant(link, message.grant, message.budget, link.grant.watch);
  give_unused_back(link, message.grant, false);  // not asked for
}

void take(Link& link, const wire::Mode& message) {
  bool free;
  {
    Lock lock(link.mutex);
    link.grant.watch = message.watch;
    if (link.phase != Phase::Holding) return;
    free = message.watch == wire::Watch::Free && link.grant.budget == 0;
  }
  if (free == link.work.free) return;
  if (!free) {
    // Whoever passed freely is waited for, or what he submits would be in nobody's books.
    gate::close_gate(link.gate);
    for (const uint64_t begin = now_ns(); now_ns() - begin < kPatience;) {
      if (out_of_the_open(link)) break;
      sleep_ns(20 * kMicrosecond);
    }
    // Who is still inside is waited for when the gate closes next; what is there now is noted.
    if (link.work.unnoted) gate::assume_all_busy(link.gate);
  }
  {
    Lock lock(link.mutex);
    link.work.free = free;
    link.work.passes_changed_at = now_ns();
    link.grant.meter.submitted(now_ns());
    link.work.busy = true;
  }
  open_locked(link, free ? gate::kFree : gate::kMetered);
}

void take(Link& link, const wire::Arena& message, int* descriptor) {
  {
    Lock lock(link.mutex);
    link.told.arena += message.bytes;
  }
  if (*descriptor < 0) {
    warn_once(
        "host memory that the scheduler gave did not arrive: this program may not be swapped out "
        "in time (does a security profile refuse its files, or are too many files open?)");
    return arena_missing(link.gate, message.bytes);
  }
  moving::swap::swap_add_arena(link.gate, *descriptor, message.bytes, arena_untaken, arena_missing);
  *descriptor = -1;
}

void take(Link& link, const wire::ArenaShared& message, int* descriptor) {
  const moving::swap::SwapSharedSegment segment{link.connection.number.load(), message.segment,
                                                message.bytes, message.owned, message.there};
  {
    Lock lock(link.mutex);
    link.told.arena += moving::swap::swap_slab_bytes(message.bytes, message.owned);
  }
  moving::swap::swap_add_shared(link.gate, *descriptor, segment, arena_untaken, arena_missing,
                                arena_slabs);
  *descriptor = -1;
}

void take(Link& link, const wire::ArenaYours& message) {
  const uint64_t bytes = moving::swap::swap_slabs_given(link.gate, link.connection.number.load(),
                                                        message.segment, message.slabs);
  Lock lock(link.mutex);
  link.told.arena += bytes;
}

void answer(Link& link, uint64_t number, Request::Answer what) {
  Lock lock(link.mutex);
  for (Request& request : link.requests) {
    if (request.answer.load() != Request::kWaits || request.number != number) continue;
    // What cannot move is there when it is given: the thread waits on, and holds nothing meanwhile.
    if (what == Request::kAbsent && !request.movable) continue;
    // Counted before anybody can act on it.
    if (what == Request::kAbsent) link.book.absent.fetch_add(request.bytes);
    request.answer = what;
    futex_wake(request.answer, kEveryone);
  }
}

// A descriptor that came with it is taken (-1 afterwards) or left to the caller.
void take_any(Link& link, const wire::Header* header, int* descriptor) {
  if (const auto* grant = wire::as<wire::Grant>(header)) {
    take(link, *grant);
  } else if (const auto* drop = wire::as<wire::Drop>(header)) {
    Lock lock(link.mutex);
    link.grant.drop = drop->grant;
    if (link.phase == Phase::Holding && drop->grant == link.grant.number) link.grant.dropped = true;
  } else if (const auto* mode = wire::as<wire::Mode>(header)) {
    take(link, *mode);
  } else if (const auto* given = wire::as<wire::MemoryAvailable>(header)) {
    answer(link, given->request, Request::kGiven);
  } else if (const auto* wait = wire::as<wire::MemoryWait>(header)) {
    // Nothing may run while some of what the program has is not there, so the gate closes before
    // the program is told where it is.
    if (link.phase == Phase::Holding) {
      link.thread.close_for = wait->request;
    } else {
      answer(link, wait->request, Request::kAbsent);
    }
  } else if (const auto* out = wire::as<wire::SwapOut>(header)) {
    take_order(link, {out->order, out->bytes, true});
  } else if (const auto* in = wire::as<wire::SwapIn>(header)) {
    take_order(link, {in->order, in->bytes, false});
  } else if (const auto* arena = wire::as<wire::Arena>(header)) {
    take(link, *arena, descriptor);
  } else if (const auto* shared = wire::as<wire::ArenaShared>(header)) {
    take(link, *shared, descriptor);
  } else if (const auto* yours = wire::as<wire::ArenaYours>(header)) {
    take(link, *yours);
  } else if (const auto* close = wire::as<wire::ArenaClose>(header)) {
    moving::swap::swap_slabs_close(link.gate, link.connection.number.load(), close->segment,
                                   close->slabs);
  } else if (const auto* need = wire::as<wire::ArenaNeed>(header)) {
    moving::swap::swap_arena_need(link.gate, need->bytes, arena_returned);
  } else if (const auto* wanted = wire::as<wire::IpcWanted>(header)) {
    if (*descriptor >= 0) memory::ipc_answer(*descriptor, wanted->memory);
    *descriptor = -1;
  } else if (const auto* refused = wire::as<wire::MemoryRefused>(header)) {
    answer(link, refused->request, Request::kRefused);
  }
}

}  // namespace

bool read_messages(Link& link) {
  alignas(8) char buffer[wire::kMaxMessage];
  while (link.thread.close_for == 0) {
    int descriptor = -1;
    const int length = wire::receive(link.connection.socket, buffer, false, &descriptor);
    if (length == -EAGAIN) return true;
    if (length <= 0) return false;
    take_any(link, wire::look_at(buffer, static_cast<size_t>(length)), &descriptor);
    if (descriptor >= 0) close(descriptor);
  }
  return true;
}

namespace {

// --- while a grant is held ---------------------------------------------------------------------

// Running free: whether calls still pass. When none do, streams are looked at.
bool moves_freely(Link& link, uint64_t now) {
  const uint64_t passes = gate::all_passes();
  if (passes != link.thread.passes_seen) {
    link.thread.passes_seen = passes;
    link.work.passes_changed_at = now;
    link.thread.looking = false;
    return true;
  }
  if (now - link.work.passes_changed_at < kFreeLook) return true;
  if (!link.thread.looking) gate::assume_all_busy(link.gate);
  link.thread.looking = true;
  return false;
}

// Brings the meter up to date; whether there is a reason to give the grant back.
bool look(Link& link) {
  const uint64_t now = now_ns();
  bool in_flight = true;
  gate::Done done;
  if (!link.work.free || !moves_freely(link, now)) {
    in_flight = !gate::nobody_inside(link.gate) ||
                gate::anything_in_flight(link.gate, kTailSpacing, now, &done);
  }
  Lock lock(link.mutex);
  if (!in_flight && link.work.busy) stop_meter(link, seen(done, now), done.elapsed, kTailSpacing);
  publish(link, now);
  link.work.ahead = gate::Ahead::of(link.grant.budget, link.grant.meter.used(now));
  if (link.grant.dropped) return true;
  if (link.grant.budget != 0 && link.grant.meter.used(now) >= link.grant.budget) return true;
  if (link.work.busy) return false;
  // Somebody may have noted a moment after `now`.
  const uint64_t since = link.grant.meter.idle_since();
  const uint64_t used = link.grant.meter.used(now);
  // Who was just granted needs a moment to wake up.
  if (used == 0) return now >= since + kFirstGrace;
  if (now < since + link.grant.grace.lasts(used, link.grant.meter.gaps())) return false;
  link.grant.grace.over(since);
  return true;
}

// How long to sleep when no message comes.
int64_t patience_of(Link& link) {
  Lock lock(link.mutex);
  if (link.phase != Phase::Holding) return kSecond;
  if (link.work.free) return kFreeLook;
  if (link.grant.budget == 0) return kLook;
  const uint64_t used = link.grant.meter.used(now_ns());
  const uint64_t left = used < link.grant.budget ? link.grant.budget - used : 0;
  return static_cast<int64_t>(left < kLook ? left : kLook);
}

// A scheduler that is stopped, or stuck, answers nobody, and keeps the socket open.
bool is_hung(Link& link) {
  const wire::Page* page = link.connection.page.load();
  const uint64_t alive = page != nullptr ? page->scheduler.alive.load() : 0;
  const uint64_t now = now_ns();
  if (alive == link.thread.alive && alive != 0) return now - link.thread.alive_at > kHung;
  link.thread.alive = alive;
  link.thread.alive_at = now;
  return false;
}

// What a message asked for that reading it must not do.
void close_for_request(Link& link) {
  const uint64_t request = link.thread.close_for;
  if (request == 0) return;
  link.thread.close_for = 0;
  stop(link);
  answer(link, request, Request::kAbsent);
}

// Until the connection ends: true when the scheduler has closed it, false when the scheduler hangs.
bool serve_connection(Link& link) {
  for (;;) {
    const int64_t patience = patience_of(link);
    pollfd poll{link.connection.socket, POLLIN, 0};
    const timespec time{patience / static_cast<int64_t>(kSecond),
                        patience % static_cast<int64_t>(kSecond)};
    ppoll(&poll, 1, &time, nullptr);
    if (poll.revents != 0 && !read_messages(link)) return true;
    close_for_request(link);
    run_orders(link);
    if (link.thread.lost) return true;
    if (is_hung(link)) return false;
    if (link.phase == Phase::Holding && !gate::stopped_looking() && look(link)) stop(link);
  }
}

// A connection that the scheduler has closed: what was asked on it is asked again on the next one.
void ask_again(Link& link) REQUIRES(link.mutex) {
  link.connection.absence = Absence::Asking;
  for (Request& request : link.requests) {
    if (request.answer.load() != Request::kWaits) continue;
    link.book.allocated.fetch_sub(request.bytes);
    if (!request.movable) link.book.pinned.fetch_sub(request.bytes);
    request.answer = Request::kAgain;
    futex_wake(request.answer, kEveryone);
  }
}

// The scheduler is gone: everybody who waits for it gets an answer, and the program runs on by
// itself, or waits, as it was told.
void lose(Link& link, bool closed) {
  Lock lock(link.mutex);
  log("the scheduler is gone");
  close(link.connection.socket);
  link.connection.socket = -1;
  link.connection.page = nullptr;
  link.connection.lost_at = now_ns();
  link.phase = Phase::Unmanaged;
  link.work.busy = false;
  if (closed) ask_again(link);
  // From now on the process holds itself to its own limit.
  const uint64_t limit = link.device.own_limit;
  const bool above = limit != 0 && link.book.allocated.load() > limit;
  for (Request& request : link.requests) {
    if (request.answer.load() != Request::kWaits) continue;
    request.answer = above ? Request::kRefused : Request::kGiven;
    futex_wake(request.answer, kEveryone);
  }
  link.thread.lost = false;
  link.thread.order_count = 0;
  open_gate(link, gate::kClosed);
}

// Without a scheduler the program runs on when it was told to, as soon as all it has is on the GPU.
void run_alone(Link& link) {
  if (link.phase != Phase::Unmanaged || is_refused(link)) return;
  if (link.gate.state.load() != gate::kClosed) return;
  if (link.thread.when_lost != wire::WhenLost::Run || now_ns() < link.thread.alone_at) return;
  if (link.book.absent.load() > 0) {  // something may move, and nothing that is in use does
    gate::close_gate(link.gate);
    drain(link);
  }
  // Two of which neither had all when the scheduler went wait for each other's room until one gives
  // all of it: who, is a toss of a coin. Not before the next scheduler has had time to come.
  const bool tossed = ((now_ns() >> 10 ^ static_cast<uint64_t>(getpid())) & 1) != 0;
  if (!bring_all_back(link, tossed && link.thread.alone_wait >= kGivesWayFrom)) {
    // Not all at the same time, and not too often: moving takes from those who run.
    const uint64_t wait = link.thread.alone_wait < kMostPatientLook
                              ? link.thread.alone_wait + kSecond
                              : kMostPatientLook;
    link.thread.alone_wait = wait;
    link.thread.alone_at = now_ns() + wait / 2 + now_ns() % (wait / 2);
    return;
  }
  link.thread.alone_wait = 0;
  Lock lock(link.mutex);
  link.work.free = true;
  open_gate(link, gate::kFree);
}

}  // namespace

void* serve_link(void* argument) {
  Link& link = *static_cast<Link*>(argument);
  prctl(PR_SET_TIMERSLACK, 1000);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  real<FunctionId::cuThreadExchangeStreamCaptureMode>(&mode);
  for (;;) {
    if (link.connection.socket >= 0) {
      const uint64_t begin = now_ns();
      const bool closed = serve_connection(link);
      lose(link, closed);
      // The gate stays closed, and allocations wait, until the scheduler has been asked again. Else
      // a program could end its own connections, and would run without limits.
      if (closed) {
        const uint64_t lived = now_ns() - begin;
        if (lived < kLookForScheduler) sleep_ns(kLookForScheduler - lived);
        if (connect_link(link)) continue;
      }
    }
    run_alone(link);
    sleep_ns(link.thread.look_again != 0 ? link.thread.look_again : kLookForScheduler);
    connect_link(link);
  }
}

}  // namespace nvshare::interposer::link
