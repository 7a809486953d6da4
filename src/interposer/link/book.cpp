// What the scheduler is asked for and told of memory: of the GPU's, and of the host's.

#include <optional>

#include "interposer/gate/records.h"
#include "interposer/link/link.h"
#include "interposer/link/state.h"
#include "interposer/moving/swap/swap.h"

namespace nvshare::interposer::link {
namespace {

// Adds to what is allocated unless that wraps. A scheduler holds the process to its own limit;
// without one, or with an older one, the process does.
bool add_allocated(Link& link, uint64_t bytes) REQUIRES(link.mutex) {
  const bool held = link.phase != Phase::Unmanaged && link.told.minor >= wire::kMinorOwnLimit;
  const uint64_t limit = held ? 0 : link.device.own_limit;
  uint64_t before = link.book.allocated.load();
  uint64_t after;
  do {
    if (__builtin_add_overflow(before, bytes, &after)) return false;
    if (limit != 0 && after > limit) return false;
  } while (!link.book.allocated.compare_exchange_weak(before, after));
  return true;
}

void publish_allocated(Link& link) {
  if (wire::Page* page = link.connection.page.load())
    page->program.allocated = link.book.allocated.load();
}

// Memory that may be allocated without asking: on one connection, and by one thread at a time.
bool take_credit(Link& link, uint64_t bytes, bool movable) REQUIRES(link.mutex) {
  wire::Page* page = link.connection.page.load();
  return page != nullptr && wire::take(movable ? page->movable_credit : page->pinned_credit, bytes);
}

// The same for what was freed. False: the scheduler must be told.
bool give_credit(Link& link, const Gone& gone) REQUIRES(link.mutex) {
  wire::Page* page = link.connection.page.load();
  if (page == nullptr || gone.resident != gone.bytes) return false;
  if (gone.pinned == 0) return wire::give(page->movable_credit, gone.bytes);
  if (gone.pinned != gone.bytes || link.told.turned_pinned) return false;
  return wire::give(page->pinned_credit, gone.bytes);
}

enum class Asking { Refused, Given, Waits, NoPlace, Later };

// Counts the bytes and asks for them, unless there is credit for them, as one: a connection that
// begins anew says in its hello what is counted.
Asking ask(Link& link, uint64_t bytes, bool movable, Request** place) {
  Lock lock(link.mutex);
  if (is_refused(link) || is_asking(link)) return Asking::Later;
  if (!add_allocated(link, bytes)) return Asking::Refused;
  if (!movable) link.book.pinned.fetch_add(bytes);
  if (link.phase == Phase::Unmanaged || take_credit(link, bytes, movable)) return Asking::Given;
  for (Request& request : link.requests) {
    if (request.answer.load() != Request::kNobody) continue;
    auto message = wire::make<wire::MemoryRequest>();
    message.request = request.number = link.told.next_request++;
    message.bytes = request.bytes = bytes;
    message.movable = request.movable = movable;
    request.answer = Request::kWaits;
    request.connection = link.connection.number;
    // A connection that fails here is given up by the link's thread, which answers everyone.
    tell(link, message.header);
    *place = &request;
    return Asking::Waits;
  }
  link.book.allocated.fetch_sub(bytes);
  if (!movable) link.book.pinned.fetch_sub(bytes);
  return Asking::NoPlace;
}

void tell_freed(Link& link, const Gone& gone) REQUIRES(link.mutex) {
  auto message = wire::make<wire::MemoryFreed>();
  message.bytes = gone.bytes;
  message.resident = gone.resident;
  message.pinned = gone.pinned;
  tell(link, message.header);
}

// The scheduler said no. If it has gone since, the new one was told of these bytes in the hello.
void take_back(Link& link, uint64_t bytes, bool movable, uint64_t connection) {
  Lock lock(link.mutex);
  link.book.allocated.fetch_sub(bytes);
  if (!movable) link.book.pinned.fetch_sub(bytes);
  if (link.phase == Phase::Unmanaged || link.connection.number == connection) return;
  tell_freed(link, {bytes, bytes, movable ? 0 : bytes});
}

}  // namespace

namespace {

constexpr uint64_t kAskAgain = 20'000'000;

// Of a link that is refused.
bool must_wait(const Link& link) {
  if (gate::stopped_looking()) return false;
  return link.connection.absence.load() != Absence::RefusedForGood || gate::has_context(link.gate);
}

}  // namespace

bool wait_while_refused(const gate::Gate& gate) {
  const KeepErrno keep;
  const Link& link = *gate.link;
  while (is_asking(link) || (is_refused(link) && must_wait(link))) sleep_ns(kAskAgain);
  return !is_refused(link);
}

// Many signal handlers only note the signal, as Python's do. The wait ends after a handler has run,
// because the program cannot act on the signal before it gets control.
//
// Each wait lasts a second at least, because a profiler's signals (SIGPROF, SIGALRM) look the same.
// Under such a profiler a refused program waits one second. A signal in that second counts at its
// end. A signal between two sleeps is missed, and can be sent again.
CUresult wait_for_welcome(const gate::Gate& gate) {
  constexpr uint64_t kLeastWait = 1'000'000'000;
  const KeepErrno keep;
  const Link& link = *gate.link;
  if (link.device.bad_limit) return kBadLimit;
  const uint64_t begin = now_ns();
  for (bool signalled = false; is_refused(link);) {
    if (gate::stopped_looking()) return gate::Passage::kRefused;
    if (!must_wait(link)) return kNotWelcome;
    if (signalled && now_ns() - begin >= kLeastWait) return kNotWelcome;
    if (!sleep_unless_signalled(kAskAgain)) signalled = true;
  }
  return CUDA_SUCCESS;
}

namespace {

// Nothing when the connection ended before the answer came.
std::optional<Given> wait_for_answer(Link& link, Request& request) {
  while (request.answer.load() == Request::kWaits) futex_wait(request.answer, Request::kWaits);
  std::optional<Given> given = Given::Refused;
  switch (request.answer.load()) {
    case Request::kGiven:
      given = Given::Room;
      break;
    case Request::kAbsent:
      given = Given::Absent;
      break;
    case Request::kAgain:
      given.reset();
      break;
    default:
      take_back(link, request.bytes, request.movable, request.connection);
  }
  request.answer = Request::kNobody;
  return given;
}

// One try; nothing when it must be tried again.
std::optional<Given> try_to_get(gate::Gate& gate, uint64_t bytes, bool movable) {
  Link& link = *gate.link;
  Request* request = nullptr;
  switch (ask(link, bytes, movable, &request)) {
    case Asking::Given:
      return Given::Room;
    case Asking::Waits:
      return wait_for_answer(link, *request);
    case Asking::Later:
      if (wait_while_refused(gate)) return std::nullopt;
      return Given::Refused;
    case Asking::NoPlace:
      sleep_ns(1'000'000);  // more threads than places
      return std::nullopt;
    case Asking::Refused:
      break;
  }
  return Given::Refused;
}

}  // namespace

Given memory_request(gate::Gate& gate, uint64_t bytes, bool movable) {
  const KeepErrno keep;
  std::optional<Given> given;
  while (!given) given = try_to_get(gate, bytes, movable);
  publish_allocated(*gate.link);
  return *given;
}

void memory_freed(gate::Gate& gate, const Gone& gone) {
  if (gone.bytes == 0) return;
  const KeepErrno keep;
  Link& link = *gate.link;
  Lock lock(link.mutex);
  link.book.allocated.fetch_sub(gone.bytes);
  link.book.pinned.fetch_sub(gone.pinned);
  link.book.absent.fetch_sub(gone.bytes - gone.resident);
  publish_allocated(link);
  if (link.phase != Phase::Unmanaged && !give_credit(link, gone)) tell_freed(link, gone);
}

namespace {

bool scheduler_comes_back(const Link& link) {
  constexpr uint64_t kSoon = 5'000'000'000;
  if (is_refused(link)) return must_wait(link);
  const uint64_t lost_at = link.connection.lost_at.load();
  return link.phase == Phase::Unmanaged && lost_at != 0 && now_ns() - lost_at < kSoon &&
         !gate::stopped_looking();
}

}  // namespace

bool wait_for_scheduler(const gate::Gate& gate) {
  const KeepErrno keep;
  while (scheduler_comes_back(*gate.link)) sleep_ns(kAskAgain);
  return gate.link->phase != Phase::Unmanaged;
}

Again::Again(gate::Gate* gate)
    : gate_(gate), connection_(gate ? gate->link->connection.number.load() : 0) {}

bool Again::after(CUresult result) {
  constexpr uint64_t kMost = 15'000'000'000;  // should one after the other come and go
  if (result != CUDA_ERROR_OUT_OF_MEMORY || gate_ == nullptr) return false;
  const KeepErrno keep;
  const uint64_t now = now_ns();
  if (since_ == 0) since_ = now;
  if (now - since_ > kMost) return false;
  const uint64_t before = connection_;
  connection_ = gate_->link->connection.number.load();
  if (connection_ != before) return true;
  if (!scheduler_comes_back(*gate_->link)) return false;
  sleep_ns(kAskAgain);
  return true;
}

namespace {

// `absent`: what is not there for that.
bool tell_no_room(Link& link, uint64_t absent) REQUIRES(link.mutex) {
  if (link.phase == Phase::Unmanaged) return false;
  auto message = wire::make<wire::MemoryMoved>();
  message.out = absent;
  message.done = message.no_room = 1;
  tell(link, message.header);
  return true;
}

}  // namespace

uint64_t memory_of_device(const gate::Gate& gate) {
  return gate.link->device.memory;
}

bool memory_is_short(gate::Gate& gate) {
  const KeepErrno keep;
  Lock lock(gate.link->mutex);
  return tell_no_room(*gate.link, 0);
}

bool memory_found_no_room(gate::Gate& gate, uint64_t bytes) {
  constexpr uint64_t kLittle = 100'000;
  const KeepErrno keep;
  Link& link = *gate.link;
  {
    Lock lock(link.mutex);
    if (!tell_no_room(link, bytes)) return false;
    link.book.absent.fetch_add(bytes);
    link.grant.dropped = true;  // the link's thread gives it back
  }
  while ((link.phase == Phase::Holding || link.phase == Phase::Stopping) &&
         !gate::stopped_looking()) {
    sleep_ns(kLittle);
  }
  return true;
}

void memory_rounding(gate::Gate& gate, uint64_t bytes) {
  Link& link = *gate.link;
  link.book.rounding.store(bytes);
  if (wire::Page* page = link.connection.page.load()) page->program.rounding = bytes;
}

void memory_pinned(gate::Gate& gate, uint64_t bytes) {
  if (bytes == 0) return;
  const KeepErrno keep;
  Link& link = *gate.link;
  Lock lock(link.mutex);
  link.book.pinned.fetch_add(bytes);
  if (link.phase == Phase::Unmanaged) return;
  link.told.turned_pinned = true;
  auto message = wire::make<wire::MemoryPinned>();
  message.bytes = bytes;
  tell(link, message.header);
}

void arena_untaken(gate::Gate& gate, uint64_t bytes) {
  if (wire::Page* page = gate.link->connection.page.load()) page->program.arena_untaken = bytes;
}

namespace {

template <typename Message>
void tell_less_arena(gate::Gate& gate, uint64_t bytes) {
  const KeepErrno keep;
  Link& link = *gate.link;
  Lock lock(link.mutex);
  link.told.arena -= bytes;
  if (link.phase == Phase::Unmanaged) return;
  auto message = wire::make<Message>();
  message.bytes = bytes;
  tell(link, message.header);
}

}  // namespace

void arena_returned(gate::Gate& gate, uint64_t bytes) {
  tell_less_arena<wire::ArenaReturned>(gate, bytes);
}

void arena_missing(gate::Gate& gate, uint64_t bytes) {
  tell_less_arena<wire::ArenaMissing>(gate, bytes);
}

namespace {

template <typename Message>
void tell_slabs(Link& link, const moving::swap::SwapSlabs& which, bool missing = false)
    REQUIRES(link.mutex) {
  auto message = wire::make<Message>();
  message.segment = which.segment;
  message.slabs = which.slabs;
  message.missing = missing ? 1 : 0;
  tell(link, message.header);
}

}  // namespace

void arena_slabs(gate::Gate& gate, moving::swap::SlabNews news,
                 const moving::swap::SwapSlabs& which) {
  const KeepErrno keep;
  Link& link = *gate.link;
  const bool missing = news == moving::swap::SlabNews::kMissing;
  Lock lock(link.mutex);
  const bool less = missing || news == moving::swap::SlabNews::kPassed;
  if (less) link.told.arena -= which.bytes;
  if (link.phase == Phase::Unmanaged) return;
  if (link.connection.number.load() != which.connection) {
    // The scheduler of now was told that the program has it.
    if (!less || which.bytes == 0) return;
    auto message = wire::make<wire::ArenaMissing>();
    message.bytes = which.bytes;
    return tell(link, message.header);
  }
  switch (news) {
    case moving::swap::SlabNews::kTaken:
      return tell_slabs<wire::ArenaTaken>(link, which);
    case moving::swap::SlabNews::kClosed:
      return tell_slabs<wire::ArenaClosed>(link, which);
    case moving::swap::SlabNews::kPassed:
    case moving::swap::SlabNews::kMissing:
      return tell_slabs<wire::ArenaPassed>(link, which, missing);
  }
}

wire::Backend memory_backend(const gate::Gate& gate) {
  return gate.link->book.backend.load(std::memory_order_relaxed);
}

namespace {

uint64_t less(uint64_t most, uint64_t used) {
  return used < most ? most - used : 0;
}

// With one more limit, of which so much is in use: the smallest one is seen, and as much in use as
// leaves what the tightest one leaves.
void add_limit(MemoryView& view, uint64_t limit, uint64_t used) {
  if (limit == 0) return;
  const uint64_t left = less(limit, used);
  const uint64_t left_before = view.limit == 0 ? left : less(view.limit, view.allocated);
  if (view.limit == 0 || limit < view.limit) view.limit = limit;
  view.allocated = view.limit - (left < left_before ? left : left_before);
}

}  // namespace

MemoryView memory_view(gate::Gate& gate) {
  Link& link = *gate.link;
  const uint64_t mine = link.book.allocated.load();
  MemoryView view{0, mine};
  wire::Page* page = link.connection.page.load();
  if (page == nullptr) {
    add_limit(view, link.device.own_limit, mine);
    return view;
  }
  // Who has credit is the tenant's only process here, and knows best what it has allocated.
  const bool alone = page->movable_credit.cap.load() != 0 || page->pinned_credit.cap.load() != 0;
  const uint64_t shared = alone ? 0 : page->scheduler.own_allocated.load();
  add_limit(view, link.device.own_limit, shared > mine ? shared : mine);
  add_limit(view, page->scheduler.memory_limit.load(),
            alone ? mine : page->scheduler.tenant_allocated.load());
  const uint64_t room = page->scheduler.room.load();
  // The driver's own memory waits for nobody: what is free now is all there is.
  view.has_room = room != 0 && memory_backend(gate) != wire::Backend::Native;
  view.room_left = less(room, mine);
  return view;
}

}  // namespace nvshare::interposer::link
