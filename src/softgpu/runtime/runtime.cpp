#include "softgpu/runtime/runtime.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "softgpu/card_config.h"
#include "softgpu/engine/schedule.h"
#include "softgpu/visible_devices.h"

namespace nvshare::softgpu {
namespace {

constexpr Nanos kUs = 1'000;
constexpr Nanos kMs = 1'000'000;
constexpr Nanos kReapEvery = 10 * kMs;
constexpr Nanos kLazyLook = 500 * kUs;
constexpr Nanos kLongestSleep = 20 * kMs;
constexpr Nanos kShortestSleep = 5 * kUs;
constexpr Nanos kLongestPollPause = 500 * kUs;

// Lets this thread sleep to the microsecond; as it was afterwards.
class FineSleep {
 public:
  FineSleep() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1); }
  ~FineSleep() {
    if (before_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_));
  }
  FineSleep(const FineSleep&) = delete;
  FineSleep& operator=(const FineSleep&) = delete;

 private:
  int before_;
};

void show_devices(Segment& segment, const Config& config) {
  const char* const order = std::getenv("CUDA_DEVICE_ORDER");
  const auto counted = counted_devices(order == nullptr ? "" : order, segment.card().device_count,
                                       static_cast<int>(config.fastest));
  const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  if (chosen == nullptr) return segment.show(counted);
  std::vector<std::string> uuids;
  for (int device = 0; device < segment.card().device_count; ++device) {
    uuids.push_back(uuid_text(segment.card().devices[device].config));
  }
  segment.show(visible_devices(chosen, uuids, counted));
}

void in_child() {
  Runtime& runtime = Runtime::instance();
  runtime.forked = true;
  if (runtime.segment) runtime.segment->abandon();
}

}  // namespace

Runtime& Runtime::instance() {
  static Runtime* const runtime = new Runtime();
  return *runtime;
}

CUresult Runtime::initialise() {
  if (init_state != CUDA_ERROR_NOT_INITIALIZED) return init_state;
  auto loaded = load_config([](const std::string& name) { return std::getenv(name.c_str()); });
  if (!loaded) {
    std::fprintf(stderr, "nvshare software GPU: %s\n", loaded.error().message.c_str());
    return init_state = CUDA_ERROR_NO_DEVICE;
  }
  config = *loaded;
  auto joined = Segment::join(config.card, card_config(config));
  if (!joined) {
    std::fprintf(stderr, "nvshare software GPU: %s\n", joined.error().message.c_str());
    return init_state = CUDA_ERROR_NO_DEVICE;
  }
  segment = std::move(*joined);
  show_devices(*segment, config);
  if (segment->shown() == 0) {
    segment.reset();
    return init_state = CUDA_ERROR_NO_DEVICE;
  }
  pthread_atfork(nullptr, nullptr, in_child);
  std::thread([this] { worker(); }).detach();
  return init_state = CUDA_SUCCESS;
}

int Runtime::pick_lane(int preferred) {
  const auto load = [&](int lane) {
    const LaneState& state = lanes_[static_cast<std::size_t>(lane)];
    return state.submitted - state.retired;
  };
  if (preferred >= 0 && load(preferred) == 0) return preferred;
  int best = 0;
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    if (load(lane) == 0) return lane;
    if (load(lane) < load(best)) best = lane;
  }
  return best;
}

// Puts one item, whose dependencies fit, into the card.
std::uint64_t Runtime::enter(int lane, Op op, std::span<const LanePoint> deps) {
  LaneState& state = lanes_[static_cast<std::size_t>(lane)];
  Pending item;
  item.lane = lane;
  {
    Segment::Lock card_lock(*segment);
    Card& card = segment->card();
    advance(card, monotonic_now());
    item.seq = softgpu::submit(card, segment->slot(), lane,
                               {op.work, segment->on_card(op.device), op.amount, op.width, deps});
    item.order = segment->self().lanes[lane].at(item.seq).order;
  }
  if (op.work == Work::kHost) ++hosts_;
  item.op = std::move(op);
  state.submitted = item.seq;
  state.pending.push_back(std::move(item));
  active_ |= bit(lane);
  return state.submitted;
}

LanePoint Runtime::submit(Lock& lock, int lane, Op op, std::span<const LanePoint> deps) {
  LaneState& state = lanes_[static_cast<std::size_t>(lane)];
  std::vector<LanePoint> open;
  for (const LanePoint& point : deps) {
    if (!finished(point) && point.lane() != lane) open.push_back(point);
  }
  const std::size_t needed = open.size() / kMaxDeps + 2;
  while (state.submitted - state.collected + needed > kLaneDepth) {
    // As the driver does when its queue is full: wait until a good part of it is done.
    wait(lock,
         LanePoint::of(lane, state.retired + std::min<std::uint64_t>(
                                                 kLaneDepth / 4, state.submitted - state.retired)));
  }
  std::span<const LanePoint> left(open);
  while (left.size() > kMaxDeps) {
    enter(lane, Op{}, left.first(kMaxDeps));
    left = left.subspan(kMaxDeps);
  }
  const bool urgent = op.work == Work::kHost;
  const std::uint64_t seq = enter(lane, std::move(op), left);
  if (urgent || worker_until_ > monotonic_now() + kMs) {
    worker_until_ = 0;
    worker_wake_.notify_one();
  }
  return LanePoint::of(lane, seq);
}

std::vector<Runtime::Pending> Runtime::collect() {
  std::vector<Pending> batch;
  if (active_ == 0) return batch;
  {
    Segment::Lock card_lock(*segment);
    Card& card = segment->card();
    const Nanos now = monotonic_now();
    if (now - last_reap_ > kReapEvery) {
      last_reap_ = now;
      if (card.occupied != bit(segment->slot())) segment->reap();
    }
    advance(card, now);
    Process& self = segment->self();
    for_each_bit(active_, [&](int lane) {
      LaneState& state = lanes_[static_cast<std::size_t>(lane)];
      const Lane& queue = self.lanes[lane];
      while (state.collected < queue.completed) {
        Pending item = std::move(state.pending.front());
        state.pending.pop_front();
        item.finished_at = queue.at(item.seq).finished_at;
        state.collected = item.seq;
        batch.push_back(std::move(item));
      }
    });
  }
  std::sort(batch.begin(), batch.end(), [](const Pending& a, const Pending& b) {
    return a.finished_at != b.finished_at ? a.finished_at < b.finished_at : a.order < b.order;
  });
  return batch;
}

void Runtime::finish(Lock& lock, Pending& item) {
  Context* context = item.op.context.get();
  if (item.op.effect && (context == nullptr || context->error == CUDA_SUCCESS)) {
    const CUresult result = item.op.effect(*this, lock);
    if (result != CUDA_SUCCESS && context != nullptr && context->error == CUDA_SUCCESS) {
      context->error = result;
    }
  }
  if (item.op.work == Work::kHost) --hosts_;
  if (item.op.done) item.op.done(item.finished_at);
  LaneState& state = lanes_[static_cast<std::size_t>(item.lane)];
  state.retired = item.seq;
  if (state.retired == state.submitted) active_ &= ~bit(item.lane);
}

// Looks after kHost work that is due. Says whether any was completed.
bool Runtime::serve_hosts() {
  if (hosts_ == 0) return false;
  bool served = false;
  for_each_bit(active_, [&](int lane) {
    LaneState& state = lanes_[static_cast<std::size_t>(lane)];
    if (state.pending.empty()) return;
    Pending& item = state.pending.front();
    if (item.op.work != Work::kHost || item.dispatched) return;
    {
      Segment::Lock card_lock(*segment);
      if (!host_ready(segment->card(), segment->slot(), lane)) return;
    }
    if (item.op.call) {
      item.dispatched = true;
      callbacks_.push_back({item.op.call, item.op.context->error, lane, item.seq});
      if (!callback_thread_) {
        callback_thread_ = true;
        std::thread([this] { callback_worker(); }).detach();
      }
      callback_wake_.notify_one();
    } else if (!item.op.ready || item.op.ready(*this)) {
      Segment::Lock card_lock(*segment);
      advance(segment->card(), monotonic_now());
      complete_host(segment->card(), segment->slot(), lane);
      served = true;
    }
  });
  if (served) poll_pause_ = 0;
  return served;
}

// A device that fell off takes the contexts on it with it.
void Runtime::look_for_losses() {
  for (int device = 0; device < device_count(); ++device) {
    if (!lost(device)) continue;
    for (auto& [handle, context] : contexts.all()) {
      if (context->device != device || context->error != CUDA_SUCCESS) continue;
      context->error = CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    Segment::Lock card_lock(*segment);
    for_each_bit(active_, [&](int lane) {
      const LaneState& state = lanes_[static_cast<std::size_t>(lane)];
      if (!state.pending.empty() && state.pending.front().op.device == device) {
        abort_lane(segment->card(), segment->slot(), lane);
      }
    });
  }
}

void Runtime::pump(Lock& lock) {
  if (pumping_) return;
  pumping_ = true;
  while (active_ != 0) {
    look_for_losses();
    auto batch = collect();
    for (Pending& item : batch) finish(lock, item);
    if (!batch.empty() && waiters_ > 0) changed_.notify_all();
    if (batch.empty() && !serve_hosts()) break;
  }
  pumping_ = false;
  if (waiters_ > 0) changed_.notify_all();
}

void Runtime::wait_until(std::condition_variable& condition, Lock& lock, Nanos until) {
  const FineSleep fine;
  condition.wait_until(lock,
                       std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until)));
}

void Runtime::wait(Lock& lock, LanePoint point) {
  ++waiters_;
  while (!finished(point)) {
    pump(lock);
    if (finished(point)) break;
    if (pumping_) {
      changed_.wait(lock);
      continue;
    }
    const Nanos now = monotonic_now();
    Nanos until = 0;
    {
      Segment::Lock card_lock(*segment);
      until = earliest_completion(segment->card(), segment->slot(), point.lane(), point.seq());
    }
    const Nanos longest = hosts_ > 0 ? kLazyLook : kLongestSleep;
    wait_until(changed_, lock, std::clamp(until, now + kShortestSleep, now + longest));
  }
  --waiters_;
}

std::vector<LanePoint> Runtime::pending_of(const Context* context) const {
  std::vector<LanePoint> points;
  for_each_bit(active_, [&](int lane) {
    const LaneState& state = lanes_[static_cast<std::size_t>(lane)];
    const bool concerns =
        context == nullptr || state.pending.empty() ||
        std::any_of(state.pending.begin(), state.pending.end(),
                    [&](const Pending& item) { return item.op.context.get() == context; });
    if (concerns) points.push_back(LanePoint::of(lane, state.submitted));
  });
  return points;
}

void Runtime::wait_all(Lock& lock, const Context* context) {
  for (const LanePoint& point : pending_of(context)) wait(lock, point);
}

void Runtime::wait_for_effects(Lock& lock) {
  ++waiters_;
  while (pumping_) changed_.wait(lock);
  --waiters_;
}

void Runtime::end_work(Lock& lock, const Context* context) {
  for (const LanePoint& point : pending_of(context)) {
    bool endless = false;
    {
      Segment::Lock card_lock(*segment);
      Card& card = segment->card();
      advance(card, monotonic_now());
      endless = earliest_completion(card, segment->slot(), point.lane(), point.seq()) == kNever;
      if (endless) {
        LaneState& state = lanes_[static_cast<std::size_t>(point.lane())];
        for (Pending& item : state.pending) item.op.effect = nullptr;
        abort_lane(card, segment->slot(), point.lane());
      }
    }
    wait(lock, point);
  }
}

void Runtime::lose_device(int device) {
  Segment::Lock card_lock(*segment);
  advance(segment->card(), monotonic_now());
  segment->card().devices[segment->on_card(device)].lost = 1;
}

// When the worker has to look again although nobody waits.
Nanos Runtime::next_look() {
  const Nanos now = monotonic_now();
  Nanos next = now + kLongestSleep;
  bool polls = false;
  {
    Segment::Lock card_lock(*segment);
    for_each_bit(active_, [&](int lane) {
      const LaneState& state = lanes_[static_cast<std::size_t>(lane)];
      if (state.pending.empty()) return;
      const Pending& item = state.pending.front();
      if (item.op.work == Work::kHost && item.op.ready) polls = true;
      next = std::min(next, earliest_completion(segment->card(), segment->slot(), lane, item.seq));
    });
  }
  if (hosts_ == 0) return std::max(next, now + kLazyLook);
  if (polls) {
    poll_pause_ = std::min(kLongestPollPause, poll_pause_ + 10 * kUs);
    next = std::min(next, now + poll_pause_);
  }
  return std::max(next, now + kShortestSleep);
}

void Runtime::worker() {
  pthread_setname_np(pthread_self(), "softgpu");
  Lock lock(mutex);
  while (true) {
    pump(lock);
    if (active_ == 0 || pumping_) {
      worker_until_ = kNever;
      if (active_ == 0) {
        worker_wake_.wait(lock);
      } else {
        wait_until(worker_wake_, lock, monotonic_now() + kLazyLook);
      }
      continue;
    }
    worker_until_ = next_look();
    wait_until(worker_wake_, lock, worker_until_);
  }
}

void Runtime::callback_worker() {
  pthread_setname_np(pthread_self(), "softgpu-host");
  Lock lock(mutex);
  while (true) {
    while (callbacks_.empty()) callback_wake_.wait(lock);
    const Callback callback = std::move(callbacks_.front());
    callbacks_.pop_front();
    lock.unlock();
    callback.call(callback.status);
    lock.lock();
    {
      Segment::Lock card_lock(*segment);
      advance(segment->card(), monotonic_now());
      // Unless the lane was aborted meanwhile, it still waits for this one.
      if (segment->self().lanes[callback.lane].completed + 1 == callback.seq) {
        complete_host(segment->card(), segment->slot(), callback.lane);
      }
    }
    pump(lock);
    worker_wake_.notify_one();
    if (waiters_ > 0) changed_.notify_all();
  }
}

}  // namespace nvshare::softgpu
