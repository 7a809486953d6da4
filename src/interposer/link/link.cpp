#include "interposer/link/link.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "interposer/gate/records.h"
#include "interposer/guest/fork.h"
#include "interposer/link/state.h"
#include "interposer/moving/managed/managed.h"
#include "wire/channel.h"
#include "wire/limit_text.h"

namespace nvshare::interposer::link {
namespace {

// One per device; all zero until it is used, so that a process without CUDA pays nothing.
Link g_links[kMaxDevices];
std::atomic<int> g_link_count{0};
Mutex g_links_mutex;

bool identify(Link& link, CUdevice device) {
  size_t total = 0;
  if (!uuid_of(device, link.device.uuid)) return false;
  if (real<FunctionId::cuDeviceTotalMem_v2>(&total, device) != CUDA_SUCCESS) return false;
  link.device.memory = total;
  link.device.own_limit = own_limit(total);
  link.device.bad_limit = !own_limit_is_understood();
  link.device.number = device;
  link.gate.link = &link;
  return true;
}

std::atomic<bool> g_left{false};

// Runs before the driver's own end, which registered itself earlier.
void at_exit() {
  if (in_forked_child() || g_left.exchange(true)) return;
  for (Link& link : g_links) give_back_first(link);
  gate::stop_looking();
  for (Link& link : g_links) begin_to_leave(link);
  for (Link& link : g_links) wait_until_left(link);
}

// The first time a device is used. Without a scheduler the gate stands open, and the thread keeps
// looking for one. A program that is refused waits at the closed gate.
void make_link(Link& link, CUdevice device) {
  if (!identify(link, device)) return;
  handle_forks();  // another thread may fork while the link is made
  const bool barrier = gate::prepare_barrier();
  if (!connect_link(link) && !is_refused(link)) {
    link.work.free = true;
    link.work.unnoted = true;
    link.gate.state = gate::kFree;
  }
  link.made = true;
  const int count = g_link_count.fetch_add(1) + 1;
  gate::g_only_gate = barrier && count == 1 ? &link.gate : nullptr;
  if (count == 1) atexit(at_exit);
  if (!start_thread(serve_link, &link, "nvshare")) be_without_thread(link);
}

}  // namespace

void tell(Link& link, const wire::Header& message) {
  if (link.connection.socket >= 0 && wire::send(link.connection.socket, &message, true) != 0) {
    shutdown(link.connection.socket, SHUT_RDWR);
  }
}

void open_gate(Link& link, uint32_t state) {
  if (state == gate::kFree) link.work.unnoted = true;
  gate::set_state(link.gate, state);
  wake_the_waiting(link);
}

void wake_the_waiting(Link& link) {
  link.waiters.turn.fetch_add(1);
  if (link.waiters.count.load() == 0) return;
  futex_wake(link.waiters.turn, kEveryone);
  if (link.connection.page_memory != nullptr)
    wire::ring(*static_cast<wire::Page*>(link.connection.page_memory));
}

void publish(Link& link, uint64_t now) {
  wire::Page* page = link.connection.page.load();
  if (page == nullptr) return;
  const uint64_t used = link.grant.meter.used(now);
  page->program.used = used;
  page->program.total_used = link.grant.total_used + used;
  page->program.grant = link.grant.number;
  page->program.submissions = gate::all_passes();
  page->program.waiting = link.waiters.count.load();
}

namespace {

// Whether some of what the program may touch is not there. Unified memory comes when it is touched.
bool is_incomplete(Link& link) {
  return static_cast<int64_t>(link.book.absent.load() -
                              moving::managed::managed_absent(link.gate)) > 0;
}

}  // namespace

void give_unused_back(Link& link, uint64_t grant, bool more_work) {
  link.grant.number = grant;
  auto back = wire::make<wire::Released>();
  back.grant = grant;
  back.more_work = more_work;
  tell(link, back.header);
}

void begin_grant(Link& link, uint64_t grant, uint64_t budget, wire::Watch watch) {
  // The scheduler has heard of the last of what moved before the move is over. It stays in the page
  // until then: given back it would come again at once.
  if (link.moving.load()) return;
  if (link.gate.state.load() == gate::kEnded ||
      gate::stopped_looking()) {  // nobody would give it back later
    link.phase = Phase::Idle;
    return give_unused_back(link, grant, false);
  }
  if (is_incomplete(link)) {
    // Given before the scheduler had heard of it: it goes back, and is asked for again.
    return give_unused_back(link, grant, true);
  }
  link.grant.number = grant;
  link.grant.budget = budget;
  link.grant.dropped = link.grant.drop == grant;  // before it could be taken
  const uint64_t now = now_ns();
  link.grant.meter.begin(now);
  link.work.ahead = gate::Ahead::of(budget, 0);
  const bool free = watch == wire::Watch::Free && budget == 0;
  link.work.free = free;
  if (free) {  // what it does is not looked at: it counts as busy until it is seen to be idle
    link.grant.meter.submitted(now);
    link.work.passes_changed_at = now;
  }
  link.work.busy = free;
  publish(link, now);
  link.phase = Phase::Holding;
  open_gate(link, free ? gate::kFree : gate::kMetered);
}

void take_offer(Link& link) {
  wire::Page* page = link.connection.page.load();
  if (page == nullptr || link.phase != Phase::Asked) return;
  const uint64_t grant = page->scheduler.grant.load();
  if (grant <= link.grant.number) return;
  // What the page says of watching is never older than the messages that have been read.
  begin_grant(link, grant, page->scheduler.budget.load(),
              static_cast<wire::Watch>(page->scheduler.watch.load()));
}

void end_before_driver() {
  static std::atomic<bool> registered{false};
  if (any_link() && !registered.exchange(true)) atexit(at_exit);
}

bool any_link() {
  return g_link_count.load(std::memory_order_relaxed) > 0;
}

gate::Gate* gate_of_device(CUdevice device) {
  if (device < 0 || device >= kMaxDevices || in_forked_child()) return nullptr;
  Link& link = g_links[device];
  if (link.made) return &link.gate;
  Lock lock(g_links_mutex);
  if (!link.made) make_link(link, device);
  return link.made ? &link.gate : nullptr;
}

gate::Gate* gate_in_use(const CUuuid& device) {
  if (!any_link() || in_forked_child()) return nullptr;
  for (Link& link : g_links) {
    if (link.made && is_same(link.device.uuid, device)) return &link.gate;
  }
  return nullptr;
}

bool uuid_of(CUdevice device, CUuuid& uuid) {
  return real<FunctionId::cuDeviceGetUuid_v2>(&uuid, device) == CUDA_SUCCESS ||
         real<FunctionId::cuDeviceGetUuid>(&uuid, device) == CUDA_SUCCESS;
}

bool is_same(const CUuuid& one, const CUuuid& other) {
  return memcmp(&one, &other, sizeof one) == 0;
}

namespace {

constexpr const char* kLimitVariable = "NVSHARE_GPU_MEMORY_LIMIT";

// A program whose limit has a typing error is not to take the whole card.
void say_bad_limit(const char* text) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  char shown[40] = {};
  strncpy(shown, text, sizeof shown - 1);
  for (char* c = shown; *c != 0; ++c) {
    if (*c < ' ' || *c > '~') *c = '?';
  }
  warn(
      "this program gets no GPU memory, because %s is '%s', which is not understood (write 4Gi, "
      "512Mi, 2G or 25%%; 0: no limit of its own)",
      kLimitVariable, shown);
}

}  // namespace

uint64_t own_limit(uint64_t device_memory) {
  constexpr uint64_t kNothingFits = 1;
  const char* text = getenv(kLimitVariable);
  if (wire::understands_limit(text)) return wire::parse_limit(text, device_memory);
  say_bad_limit(text);
  return kNothingFits;
}

bool own_limit_is_understood() {
  return wire::understands_limit(getenv(kLimitVariable));
}

gate::Gate* gate_of_current_device() {
  CUdevice device = -1;
  if (real<FunctionId::cuCtxGetDevice>(&device) != CUDA_SUCCESS) return nullptr;
  return gate_of_device(device);
}

void start_meter(Link& link, gate::StreamRecord& record) {
  Lock lock(link.mutex);
  if (link.phase != Phase::Holding && link.phase != Phase::Stopping) return;
  if (link.work.busy) return;
  link.grant.meter.submitted(now_ns());
  gate::place_origin(record);
  link.work.busy = true;
}

// Who submits once the meter stands starts it again. Who saw it run does not, and what he submitted
// may have been running since we looked, which was long ago when this thread was kept waiting: then
// it is as if the meter had never stopped. Only the GPU's own clock is not to be relied on any more
// for this interval: markers that were done meanwhile did not look at it.
void stop_meter(Link& link, uint64_t at, uint64_t elapsed, uint64_t spacing) {
  const gate::Meter running = link.grant.meter;
  link.grant.meter.idle(at, elapsed);
  link.work.busy = false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  link.work.origin.interval = 0;
  gate::Done ignored;
  if (gate::nobody_inside(link.gate) &&
      !gate::anything_in_flight(link.gate, spacing, now_ns(), &ignored)) {
    return;
  }
  link.grant.meter = running;
  link.work.busy = true;
}

void note_waited(Link& link) {
  Lock lock(link.mutex);
  if (!link.work.busy || link.work.free) return;
  gate::Done done;
  const uint64_t now = now_ns();
  if (!gate::nobody_inside(link.gate) ||
      gate::anything_in_flight(link.gate, gate::kPlaceNothing, now, &done))
    return;
  stop_meter(link, now, done.elapsed, gate::kPlaceNothing);
}

void note_gap(Link& link, gate::StreamRecord& record) {
  constexpr uint64_t kGap = 50'000;  // nanoseconds
  const uint64_t now = now_ns();
  const uint64_t last = record.last_call_at.exchange(now, std::memory_order_relaxed);
  if (now <= last + kGap) return;
  gate::note_pause(record, now);
  if (link.work.busy && record.marked == record.submitted) note_waited(link);
}

void wait_for_grant(Link& link) {
  // Not for ever, although the bell always rings: a guest looks after itself.
  constexpr uint64_t kAtMost = 1'000'000'000;
  const uint64_t begin = now_ns();
  wire::Page* page;
  uint32_t turn;
  {
    Lock lock(link.mutex);
    page = link.connection.page.load();
    turn = page != nullptr ? page->bell.load() : link.waiters.turn.load();
    take_offer(link);
    if (link.gate.state.load() != gate::kClosed) return;
    // Whatever came now would go back at once (begin_grant): nobody opens the gate any more, but
    // who has closed it for a moment.
    if (gate::stopped_looking() && link.phase != Phase::Holding) return gate::end_gate(link.gate);
    if (link.phase == Phase::Idle) {
      auto message = wire::make<wire::RequestGrant>();
      tell(link, message.header);
      link.phase = Phase::Asked;
      link.grant.grace.asked(now_ns());
    }
    link.waiters.count.fetch_add(1);
  }
  if (page != nullptr) {
    shared_futex_wait(page->bell, turn, kAtMost);
  } else {
    futex_wait(link.waiters.turn, turn, kAtMost);
  }
  link.waiters.count.fetch_sub(1);
  {
    Lock lock(link.mutex);
    take_offer(link);
  }
  link.waiters.held.fetch_add(now_ns() - begin);
  link.waiters.holds.fetch_add(1);
  if (page = link.connection.page.load(); page != nullptr) {
    page->program.held = link.waiters.held.load();
    page->program.holds = link.waiters.holds.load();
    page->program.waiting = link.waiters.count.load();
  }
}

void forget_links_after_fork() {
  g_links_mutex.reset_after_fork();
  for (Link& link : g_links) {
    if (link.gate.link == nullptr) continue;  // never used
    if (link.connection.socket >= 0) close(link.connection.socket);
    link.connection.socket = -1;
    link.connection.page = nullptr;  // the mapping does not follow into children
    link.mutex.reset_after_fork();
    link.phase = Phase::Unmanaged;
    link.connection.absence = Absence::NoScheduler;
  }
}

}  // namespace nvshare::interposer::link
