#include "softgpu/engine/schedule.h"

#include <algorithm>
#include <cmath>

namespace nvshare::softgpu {
namespace {

constexpr int kCompute = 0;
constexpr int kIn = 1;
constexpr int kOut = 2;
constexpr double kEpsilon = 1e-6;

int engine_of(Work work) {
  return static_cast<int>(work) - 1;
}

Item& head(Process& process, int lane) {
  Lane& queue = process.lanes[lane];
  return queue.at(queue.completed + 1);
}

const Item& head(const Process& process, int lane) {
  const Lane& queue = process.lanes[lane];
  return queue.at(queue.completed + 1);
}

bool reached(const Process& process, LanePoint point) {
  return process.lanes[point.lane()].completed >= point.seq();
}

// Marks the head of the lane done at `at` and moves the lane on.
void finish(Process& process, int lane, Nanos at) {
  Lane& queue = process.lanes[lane];
  Item& item = queue.at(queue.completed + 1);
  item.finished_at = at;
  item.state = ItemState::kDone;
  if (item.work != Work::kMarker && item.work != Work::kHost) {
    Usage& usage = process.usage[item.device];
    const int engine = engine_of(item.work);
    usage.running[engine] &= ~bit(lane);
    usage.ready[engine] &= ~bit(lane);
    if (engine == kCompute) ++usage.kernels;
  }
  ++queue.completed;
  if (!queue.pending()) process.pending &= ~bit(lane);
  process.unsettled = true;
}

// Moves every head on whose wait is over: markers complete, the others queue at their engine.
void settle(Card& card, Process& process) {
  while (process.unsettled) {
    process.unsettled = false;
    for_each_bit(process.pending, [&](int lane) {
      while (process.lanes[lane].pending()) {
        Item& item = head(process, lane);
        if (item.state != ItemState::kWaiting) break;
        const auto deps = std::span(item.deps, item.dep_count);
        if (!std::all_of(deps.begin(), deps.end(),
                         [&](LanePoint point) { return reached(process, point); })) {
          break;
        }
        item.started_at = card.clock;
        if (item.work == Work::kMarker) {
          finish(process, lane, card.clock);
          continue;
        }
        item.state = ItemState::kReady;
        if (item.work != Work::kHost) {
          process.usage[item.device].ready[engine_of(item.work)] |= bit(lane);
        }
        break;
      }
    });
  }
}

// The lane whose head was submitted first; `lanes` is not empty.
int oldest(const Process& process, std::uint64_t lanes) {
  int best = -1;
  for_each_bit(lanes, [&](int lane) {
    if (best < 0 || head(process, lane).order < head(process, best).order) best = lane;
  });
  return best;
}

void start(Card& card, Process& process, int device, int engine, int lane) {
  Item& item = head(process, lane);
  item.state = ItemState::kRunning;
  item.started_at = card.clock;
  process.usage[device].ready[engine] &= ~bit(lane);
  process.usage[device].running[engine] |= bit(lane);
}

// Starts the process's ready kernels, in order, while they fit side by side.
void admit_kernels(Card& card, Process& process, int device) {
  Usage& usage = process.usage[device];
  double used = 0;
  for_each_bit(usage.running[kCompute], [&](int lane) { used += head(process, lane).width; });
  while (usage.ready[kCompute] != 0) {
    const int lane = oldest(process, usage.ready[kCompute]);
    const double width = head(process, lane).width;
    if (usage.running[kCompute] != 0 && used + width > 1.0) break;
    start(card, process, device, kCompute, lane);
    used += width;
  }
}

bool wants_compute(const Process& process, int device) {
  const Usage& usage = process.usage[device];
  return (usage.ready[kCompute] | usage.running[kCompute]) != 0;
}

// The next process after `slot`, in turn, that has compute work; `slot` itself comes last.
int next_in_turn(const Card& card, int device, int slot) {
  for (int step = 1; step <= kMaxProcesses; ++step) {
    const int candidate = (slot + step + kMaxProcesses) % kMaxProcesses;
    if ((card.occupied & bit(candidate)) != 0 && wants_compute(card.processes[candidate], device)) {
      return candidate;
    }
  }
  return -1;
}

// Gives the compute engine to whoever's turn it is.
void take_turns(Card& card, int device) {
  Device& dev = card.devices[device];
  Turn& turn = dev.turn;
  const bool owner_wants = turn.owner >= 0 && (card.occupied & bit(turn.owner)) != 0 &&
                           wants_compute(card.processes[turn.owner], device);
  if (!owner_wants || card.clock >= turn.slice_end) {
    const int next = next_in_turn(card, device, turn.owner);
    if (next < 0) return;
    const bool changes = next != turn.owner;
    const Nanos cost = changes && turn.owner >= 0 ? dev.config.switch_cost : 0;
    turn.owner = next;
    turn.runs_from = card.clock + cost;
    turn.slice_end = turn.runs_from + dev.config.slice;
  }
  if (card.clock >= turn.runs_from) admit_kernels(card, card.processes[turn.owner], device);
}

void start_copies(Card& card, int slot, int device) {
  Process& process = card.processes[slot];
  for (int engine : {kIn, kOut}) {
    Usage& usage = process.usage[device];
    if (usage.running[engine] == 0 && usage.ready[engine] != 0) {
      start(card, process, device, engine, oldest(process, usage.ready[engine]));
    }
  }
}

struct ActiveCopy {
  int slot;
  int lane;
  double cap;
  double rate;
};

// The copies under way in one direction with the rate each gets: equal parts of the link, and
// what one cannot use goes to the others. One copy per process and direction is under way.
struct ActiveCopies {
  ActiveCopy list[kMaxProcesses];
  int count = 0;
};

void share_link(Card& card, int device, int engine, ActiveCopies& copies) {
  copies.count = 0;
  for_each_bit(card.occupied, [&](int slot) {
    const Process& process = card.processes[slot];
    const std::uint64_t lanes = process.usage[device].running[engine];
    if (lanes == 0) return;
    const int lane = __builtin_ctzll(lanes);
    copies.list[copies.count++] = {slot, lane, static_cast<double>(head(process, lane).width), 0};
  });
  std::sort(copies.list, copies.list + copies.count,
            [](const ActiveCopy& a, const ActiveCopy& b) { return a.cap < b.cap; });
  double left = card.devices[device].config.link;
  for (int i = 0; i < copies.count; ++i) {
    ActiveCopy& copy = copies.list[i];
    copy.rate = std::min(copy.cap, left / (copies.count - i));
    left -= copy.rate;
  }
}

void note_busy(Usage& usage, Nanos from, Nanos to, bool copies) {
  (copies ? usage.copy_busy : usage.compute_busy) += to - from;
  from = std::max(from, to - kBucketLength * kHistoryBuckets);
  while (from < to) {
    const std::uint64_t stretch = static_cast<std::uint64_t>(from / kBucketLength);
    const Nanos end = std::min<Nanos>(to, (static_cast<Nanos>(stretch) + 1) * kBucketLength);
    BusyBucket& bucket = usage.history[stretch % kHistoryBuckets];
    if (bucket.stretch != stretch) bucket = {stretch, 0, 0};
    (copies ? bucket.copy : bucket.compute) += static_cast<std::uint32_t>(end - from);
    from = end;
  }
}

Nanos after(Nanos from, double duration) {
  if (!(duration < 4e18)) return kNever;
  const Nanos length = static_cast<Nanos>(std::ceil(duration - kEpsilon));
  return from > kNever - length ? kNever : from + std::max<Nanos>(length, 0);
}

// One device between two moments at which something changes.
struct DeviceStep {
  ActiveCopies copies[2];
};

Nanos next_change(Card& card, int device, DeviceStep& step) {
  Device& dev = card.devices[device];
  if (dev.lost != 0) return kNever;
  Nanos next = kNever;
  const Turn& turn = dev.turn;
  if (turn.owner >= 0 && wants_compute(card.processes[turn.owner], device)) {
    if (card.clock < turn.runs_from) {
      next = turn.runs_from;
    } else {
      const Process& process = card.processes[turn.owner];
      for_each_bit(process.usage[device].running[kCompute], [&](int lane) {
        next = std::min(next, after(card.clock, head(process, lane).remaining));
      });
      if (next_in_turn(card, device, turn.owner) != turn.owner) {
        next = std::min(next, turn.slice_end);
      }
    }
  }
  for (int engine : {kIn, kOut}) {
    ActiveCopies& copies = step.copies[engine - kIn];
    share_link(card, device, engine, copies);
    for (int i = 0; i < copies.count; ++i) {
      const ActiveCopy& copy = copies.list[i];
      next = std::min(next, after(card.clock, head(card.processes[copy.slot], copy.lane).remaining /
                                                  copy.rate));
    }
  }
  return next;
}

// Lets one device work from the card's clock to `to` and finishes what is then complete.
void work(Card& card, int device, const DeviceStep& step, Nanos to) {
  Device& dev = card.devices[device];
  if (dev.lost != 0) return;
  const double elapsed = static_cast<double>(to - card.clock);
  const Turn& turn = dev.turn;
  if (turn.owner >= 0 && card.clock >= turn.runs_from) {
    Process& process = card.processes[turn.owner];
    const std::uint64_t running = process.usage[device].running[kCompute];
    if (running != 0 && to > card.clock) note_busy(process.usage[device], card.clock, to, false);
    for_each_bit(running, [&](int lane) {
      Item& item = head(process, lane);
      item.remaining -= elapsed;
      if (item.remaining <= kEpsilon) finish(process, lane, to);
    });
  }
  for (int direction = 0; direction < 2; ++direction) {
    const ActiveCopies& copies = step.copies[direction];
    for (int i = 0; i < copies.count; ++i) {
      const ActiveCopy& copy = copies.list[i];
      Process& process = card.processes[copy.slot];
      Item& item = head(process, copy.lane);
      const double moved = std::min(item.remaining, elapsed * copy.rate);
      Usage& usage = process.usage[device];
      if (to > card.clock) note_busy(usage, card.clock, to, true);
      (direction == 0 ? usage.copied_in : usage.copied_out) += static_cast<std::uint64_t>(moved);
      item.remaining -= moved;
      if (item.remaining <= kEpsilon * std::max(1.0, moved)) finish(process, copy.lane, to);
    }
  }
}

// Makes everything that can start at the card's clock start.
void settle_all(Card& card) {
  for_each_bit(card.occupied, [&](int slot) { settle(card, card.processes[slot]); });
  for (int device = 0; device < card.device_count; ++device) {
    if (card.devices[device].lost != 0) continue;
    take_turns(card, device);
    for_each_bit(card.occupied, [&](int slot) { start_copies(card, slot, device); });
  }
}

// How long the process keeps the engine for sure once it has it, up to `limit`: the longest chain
// of kernels that follow one another in a lane.
double assured_run(const Process& process, int device, double limit) {
  double longest = 0;
  const Usage& usage = process.usage[device];
  for_each_bit(usage.ready[kCompute] | usage.running[kCompute], [&](int lane) {
    const Lane& queue = process.lanes[lane];
    double chain = 0;
    for (std::uint64_t seq = queue.completed + 1; seq <= queue.submitted && chain < limit; ++seq) {
      const Item& item = queue.at(seq);
      if (item.work != Work::kCompute || item.device != device) break;
      chain += item.remaining;
    }
    longest = std::max(longest, chain);
  });
  return std::min(longest, limit);
}

// How long it takes at least until the process has the compute engine.
double until_turn(const Card& card, int slot, int device) {
  const Device& dev = card.devices[device];
  const Turn& turn = dev.turn;
  const double slice = static_cast<double>(dev.config.slice);
  if (turn.owner < 0) return 0;
  double wait = static_cast<double>(std::max<Nanos>(turn.runs_from - card.clock, 0));
  if (turn.owner == slot) return wait;
  const Process& owner = card.processes[turn.owner];
  const double left = static_cast<double>(
      std::max<Nanos>(turn.slice_end - std::max(card.clock, turn.runs_from), 0));
  wait += assured_run(owner, device, left);
  for (int next = next_in_turn(card, device, turn.owner); next >= 0 && next != slot;
       next = next_in_turn(card, device, next)) {
    if (next == turn.owner) return wait;  // this process has nothing ready on the engine
    wait += static_cast<double>(dev.config.switch_cost) +
            assured_run(card.processes[next], device, slice);
  }
  return wait + static_cast<double>(dev.config.switch_cost);
}

double time_alone(const Card& card, const Item& item) {
  switch (item.work) {
    case Work::kCompute:
      return item.remaining;
    case Work::kCopyIn:
    case Work::kCopyOut:
      return item.remaining / std::min<double>(item.width, card.devices[item.device].config.link);
    case Work::kMarker:
    case Work::kHost:
      break;
  }
  return 0;
}

constexpr int kLookThrough = 6;
constexpr double kUnknownWait = 50'000;

double time_left(const Card& card, int slot, int lane, std::uint64_t seq, int depth) {
  const Process& process = card.processes[slot];
  const Lane& queue = process.lanes[lane];
  if (queue.completed >= seq) return 0;
  const Item& first = head(process, lane);
  double wait = 0;
  if (first.state == ItemState::kWaiting) {
    for (const LanePoint& point : std::span(first.deps, first.dep_count)) {
      if (reached(process, point)) continue;
      wait =
          std::max(wait, depth == 0 ? kUnknownWait
                                    : time_left(card, slot, point.lane(), point.seq(), depth - 1));
    }
  } else if (first.work == Work::kHost) {
    return HUGE_VAL;
  } else if (first.work == Work::kCompute) {
    wait = until_turn(card, slot, first.device);
    const std::uint64_t running = process.usage[first.device].running[kCompute];
    if (first.state == ItemState::kReady && running != 0) {
      double soonest = HUGE_VAL;  // until one of those that fill the device is done
      for_each_bit(running,
                   [&](int other) { soonest = std::min(soonest, head(process, other).remaining); });
      wait += soonest;
    }
  } else if (first.state == ItemState::kReady) {
    const std::uint64_t running = process.usage[first.device].running[engine_of(first.work)];
    if (running != 0) wait = time_alone(card, head(process, __builtin_ctzll(running)));
  }
  for (std::uint64_t at = queue.completed + 1; at <= seq; ++at) {
    const Item& item = queue.at(at);
    if (item.work == Work::kHost) return wait == 0 ? kUnknownWait : wait;
    if (card.devices[item.device].lost != 0) return HUGE_VAL;
    wait += time_alone(card, item);
  }
  return wait;
}

}  // namespace

void advance(Card& card, Nanos now) {
  while (true) {
    settle_all(card);
    if (card.clock >= now) return;
    DeviceStep steps[kMaxDevices];
    Nanos next = now;
    for (int device = 0; device < card.device_count; ++device) {
      next = std::min(next, next_change(card, device, steps[device]));
    }
    next = std::max(next, card.clock);
    for (int device = 0; device < card.device_count; ++device) {
      work(card, device, steps[device], next);
    }
    card.clock = next;
  }
}

bool has_room(const Card& card, int slot, int lane, std::uint64_t collected) {
  return card.processes[slot].lanes[lane].submitted - collected < kLaneDepth;
}

std::uint64_t submit(Card& card, int slot, int lane, const Submission& submission) {
  Process& process = card.processes[slot];
  Lane& queue = process.lanes[lane];
  Item& item = queue.at(queue.submitted + 1);
  item = Item{};
  item.work = submission.work;
  item.device = static_cast<std::uint8_t>(submission.device);
  item.width = static_cast<float>(submission.width);
  item.remaining = submission.amount;
  item.order = process.next_order++;
  item.dep_count =
      static_cast<std::uint8_t>(std::min<std::size_t>(submission.deps.size(), kMaxDeps));
  std::copy_n(submission.deps.begin(), item.dep_count, item.deps);
  ++queue.submitted;
  process.pending |= bit(lane);
  process.unsettled = true;
  settle_all(card);
  return queue.submitted;
}

bool host_ready(const Card& card, int slot, int lane) {
  const Process& process = card.processes[slot];
  if (!process.lanes[lane].pending()) return false;
  const Item& item = head(process, lane);
  return item.work == Work::kHost && item.state == ItemState::kReady;
}

void complete_host(Card& card, int slot, int lane) {
  if (!host_ready(card, slot, lane)) return;
  finish(card.processes[slot], lane, card.clock);
  settle_all(card);
}

Nanos earliest_completion(const Card& card, int slot, int lane, std::uint64_t seq) {
  return after(card.clock, time_left(card, slot, lane, seq, kLookThrough));
}

void abort_lane(Card& card, int slot, int lane) {
  Process& process = card.processes[slot];
  Lane& queue = process.lanes[lane];
  for (Usage& usage : process.usage) {
    for (int engine = 0; engine < kEngines; ++engine) {
      usage.ready[engine] &= ~bit(lane);
      usage.running[engine] &= ~bit(lane);
    }
  }
  while (queue.pending()) {
    head(process, lane).work = Work::kMarker;
    finish(process, lane, card.clock);
  }
  settle_all(card);
}

void clear_process(Card& card, int slot) {
  card.occupied &= ~bit(slot);
  Process& process = card.processes[slot];
  process.pid = 0;
  ++process.generation;
  process.pending = 0;
  process.unsettled = false;
  for (Lane& lane : process.lanes) lane.completed = lane.submitted = 0;
  for (Usage& usage : process.usage) usage = Usage{};
  for (SharedAllocation& shared : card.shared) shared.holders &= ~bit(slot);
  for (IpcEvent& event : card.events) {
    event.holders &= ~bit(slot);
    if (event.holders == 0) event.key = 0;
  }
}

void repair(Card& card) {
  for_each_bit(card.occupied, [&](int slot) {
    Process& process = card.processes[slot];
    process.pending = 0;
    process.unsettled = true;
    for (Usage& usage : process.usage) {
      std::fill_n(usage.ready, kEngines, 0);
      std::fill_n(usage.running, kEngines, 0);
    }
    for (int lane = 0; lane < kMaxLanes; ++lane) {
      Lane& queue = process.lanes[lane];
      while (queue.pending() && head(process, lane).state == ItemState::kDone) ++queue.completed;
      if (!queue.pending()) continue;
      process.pending |= bit(lane);
      Item& item = head(process, lane);
      if (item.work != Work::kHost) item.state = ItemState::kWaiting;
    }
  });
  settle_all(card);
}

Nanos busy_between(const Card& card, int slot, int device, Nanos from, Nanos to, bool copies) {
  Nanos busy = 0;
  from = std::max(from, to - kBucketLength * (kHistoryBuckets - 1));
  const auto add = [&](int index) {
    for (const BusyBucket& bucket : card.processes[index].usage[device].history) {
      const Nanos start = static_cast<Nanos>(bucket.stretch) * kBucketLength;
      const Nanos overlap = std::min(to, start + kBucketLength) - std::max(from, start);
      if (bucket.stretch == 0 || overlap <= 0) continue;
      const Nanos spent = copies ? bucket.copy : bucket.compute;
      busy += spent * overlap / kBucketLength;
    }
  };
  if (slot >= 0) {
    add(slot);
  } else {
    for_each_bit(card.occupied, add);
  }
  return busy;
}

}  // namespace nvshare::softgpu
