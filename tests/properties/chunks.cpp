#include "chunks.h"

#include <fmt/format.h>

#include <algorithm>

#include "text.h"

namespace nvshare::properties {

using namespace core;

namespace {

constexpr Bytes kNothing{0};
constexpr Bytes kGpu = gib(4);

Config quick_turns(Dice& dice) {
  Config config;
  config.share_mode = dice.pick({ShareMode::Turns, ShareMode::Auto, ShareMode::Concurrent});
  config.turn = 20ms;
  config.reserve_percent = 0;
  config.reserve_base = config.reserve_per_process = kNothing;
  config.quantum_min = 200ms;
  config.quantum_max = 400ms;
  config.link_per_second = gib(10);
  config.ageing = 100ms;
  return config;
}

}  // namespace

ChunkWorld::ChunkWorld(Dice dice)
    : dice_(dice), config_(quick_turns(dice_)), core_(config_, Time{}), watch_(config_, Time{}) {
  tell(GpuAdded{GpuId{0}, kGpu});
  for (std::uint64_t c = 2 + dice_.below(4); c > 0; --c) add_client(ClientId{c}, kGpu);
  if (dice_.one_in(2)) return;
  // Host memory for the shortage and two chunks, and not a byte more; or some for what is pinned.
  for (const auto& [id, process] : processes_) tell(HostMemoryComing{id, {}, kNothing});
  host_ = core_.snapshot().gpus[0].host_claim + (dice_.one_in(2) ? kNothing : gib(2));
  tell(HostMeasured{host_});
}

Bytes ChunkWorld::on_the_host() const {
  Bytes sum{};
  for (const auto& [id, process] : processes_) {
    for (const Chunk& chunk : process.chunks) {
      sum += chunk.written && !chunk.there ? chunk.bytes : kNothing;
    }
  }
  return sum;
}

void ChunkWorld::add_client(ClientId id, Bytes room) {
  Limits limits;
  if (dice_.one_in(4)) limits.memory = kGpu;
  limits.priority = dice_.pick({0, 0, 2});
  tell(TenantAdded{TenantId{id.value}, "t", limits});
  tell(ClientAdded{id, TenantId{id.value}, GpuId{0}});
  Process& process = processes_[id];
  Bytes sum{};
  const int chunks = 1 + static_cast<int>(dice_.below(30));
  for (int i = 0; i < chunks; ++i) {
    const Bytes odd{dice_.one_in(4) ? dice_.byte() : 0};
    const Bytes chunk = mib(1 + dice_.byte()) - odd;
    if (sum + chunk > room) break;
    sum += chunk;
    process.chunks.push_back({chunk, false});
  }
  served_[id] = {};
  tell(MemoryChanged{id, sum, {}, {}});
  tell(WorkRequested{id});
}

Bytes ChunkWorld::resident(const Process& process) {
  Bytes sum = process.pinned;
  for (const Chunk& chunk : process.chunks) sum += chunk.there ? chunk.bytes : kNothing;
  return sum;
}

Bytes ChunkWorld::allocated(const Process& process) {
  Bytes sum = process.pinned + process.awaits;
  for (const Chunk& chunk : process.chunks) sum += chunk.bytes;
  return sum;
}

bool ChunkWorld::all_there(ClientId id) const {
  const auto& chunks = processes_.at(id).chunks;
  return std::ranges::all_of(chunks, &Chunk::there);
}

std::string ChunkWorld::story() const {
  std::string text;
  for (const std::string& line : story_) text += line + "\n";
  return text + to_lines(watch_.broken());
}

void ChunkWorld::tell(const Event& event) {
  const auto result = core_.step(event, now_);
  story_.push_back(fmt::format("{:>14}ns {} {}", now_.time_since_epoch().count(),
                               result ? "     " : "(no) ", to_line(event)));
  watch_.expect(static_cast<bool>(result), Rule::Books,
                result ? "" : "what is true is refused: " + result.error().message);
  watch_.after(event, now_, result, core_);
  if (!result) return;
  for (const Decision& decision : *result) {
    story_.push_back("                  -> " + to_line(decision));
    std::visit([this](const auto& d) { obey(d); }, decision.action);
  }
}

// --- what clients do ---------------------------------------------------------------------------

void ChunkWorld::obey(const Grant& d) {
  processes_[d.client].granted_at = now_;
  if (d.budget) processes_[d.client].release_due = now_ + *d.budget;
}

void ChunkWorld::obey(const Drop& d) {
  processes_[d.client].release_due = now_ + 1ms;
}

// Also when its growth fits at once.
void ChunkWorld::obey(const MemoryAvailable& d) {
  for (Chunk& chunk : processes_[d.client].chunks) chunk.there = chunk.written = true;
  ++served_[d.client].times;
  served_[d.client].last = now_;
}

void ChunkWorld::obey(const MemoryGiven& d) {
  Process& process = processes_[d.client];
  const Duration waited = now_ - process.awaits_since;
  longest_wait_ = std::max(longest_wait_, waited);
  given_later_ += waited > Duration::zero() ? 1 : 0;
  process.pinned += std::exchange(process.awaits, kNothing);
}

void ChunkWorld::obey(const MemoryRefused& d) {
  processes_[d.client].awaits -= processes_[d.client].asked;
}

Duration ChunkWorld::longest_wait() const {
  Duration longest = longest_wait_;
  for (const auto& [id, process] : processes_) {
    if (process.awaits > kNothing) longest = std::max(longest, now_ - process.awaits_since);
  }
  return longest;
}

void ChunkWorld::pin_some(ClientId id) {
  Process& process = processes_[id];
  process.asked = mib(1 + dice_.byte());
  if (process.awaits == kNothing) process.awaits_since = now_;
  process.awaits += process.asked;
  const Bytes pinned = process.pinned + process.asked;
  tell(MemoryChanged{id, allocated(process), pinned, resident(process), true, true});
}

void ChunkWorld::unpin(ClientId id) {
  Process& process = processes_[id];
  process.pinned = kNothing;
  tell(MemoryChanged{id, allocated(process), {}, resident(process)});
}

void ChunkWorld::put_to_sleep(ClientId id) {
  processes_[id].wake_due = now_ + 1ms * (1 + 2 * dice_.byte());
  tell(TenantSleeps{TenantId{id.value}, true, true});
}

void ChunkWorld::obey(const ReadMeter& d) {
  told_.push_back(Usage{d.client, now_ - processes_[d.client].granted_at});
}

void ChunkWorld::take_order(ClientId id, Order order) {
  ++orders_;
  Process& process = processes_[id];
  process.orders.push_back(order);
  if (!process.order_due) process.order_due = now_ + 1ms * (1 + dice_.below(100));
}

// Out goes at least what was ordered, in comes at most that, or all that is missing.
void ChunkWorld::follow_order(ClientId id) {
  Process& process = processes_[id];
  const Order order = process.orders.front();
  process.orders.pop_front();
  process.order_due.reset();
  if (!process.orders.empty()) process.order_due = now_ + 1ms;
  const Bytes absent = allocated(process) - process.awaits - resident(process);
  const bool all_in = !order.out && order.bytes >= absent;
  int most = dice_.one_in(4) ? static_cast<int>(dice_.below(4)) : 1000;  // then it fails
  Bytes moved{};
  Bytes fresh{};
  for (Chunk& chunk : process.chunks) {
    if (chunk.there != order.out || (order.out && moved >= order.bytes)) continue;
    if (!order.out && !all_in && moved + chunk.bytes > order.bytes) continue;
    if (most-- == 0) break;
    if (!order.out && !chunk.written) fresh += chunk.bytes;
    chunk.there = !order.out;
    chunk.written = true;
    moved += chunk.bytes;
  }
  watch_.expect(!host_ || on_the_host() <= *host_, Rule::Books,
                "more was told to leave than there is host memory for");
  MemoryMoved report{id, resident(process), 1ms};
  report.fresh = fresh;
  const Bytes undone = std::max(kNothing, order.bytes - moved);
  (order.out ? report.kept : report.missing) = undone;
  told_.push_back(report);
}

// --- time --------------------------------------------------------------------------------------

std::optional<Time> ChunkWorld::next_time() const {
  std::optional<Time> next = core_.next_wakeup();
  const auto earlier = [&](std::optional<Time> time) {
    if (time && (!next || *time < *next)) next = time;
  };
  for (const auto& [id, process] : processes_) {
    earlier(process.order_due);
    earlier(process.release_due);
    earlier(process.wake_due);
  }
  return next;
}

void ChunkWorld::play_moment() {
  for (auto& [id, process] : processes_) {
    if (process.release_due && *process.release_due <= now_) {
      process.release_due.reset();
      told_.push_back(Released{id, now_ - process.granted_at, true});
    } else if (dice_.one_in(16)) {
      dice_.one_in(2) ? pin_some(id) : unpin(id);
    } else if (!process.wake_due && dice_.one_in(32)) {
      put_to_sleep(id);
    }
    if (process.wake_due && *process.wake_due <= now_) {
      process.wake_due.reset();
      tell(TenantSleeps{TenantId{id.value}, false});
    }
    if (process.order_due && *process.order_due <= now_) follow_order(id);
    while (!told_.empty()) {
      Event event = told_.front();
      told_.pop_front();
      if (auto* moved = std::get_if<MemoryMoved>(&event)) {
        for (const Order& one : processes_[moved->client].orders) {
          (one.out ? moved->out_left : moved->in_left) += one.bytes;
        }
      }
      tell(event);
    }
  }
  if (core_.next_wakeup() && *core_.next_wakeup() <= now_) tell(Tick{});
}

void ChunkWorld::play(Time end) {
  while (watch_.broken().empty()) {
    const auto next = next_time();
    if (!next || *next > end) return;
    now_ = std::max(now_, *next);
    play_moment();
  }
}

}  // namespace nvshare::properties
