// The arbiter on random requests, samples, releases and times: each request has one answer, on
// time; slots hold; the highest class is served first; a GPU without a lease leaves nobody waiting.

#include <fmt/format.h>

#include <map>

#include "core/arbiter/arbiter.h"
#include "dice.h"
#include "holds.h"

namespace nvshare::properties {
namespace {

using namespace core;

const char* const kClasses[] = {"ASR", "NMT", "TTS", "SEMANTIC_REPAIR", "BATCH", "SHEDS"};
constexpr int kGpus = 2;

ArbiterConfig random_config(Dice& dice) {
  ArbiterConfig config;
  config.slots = dice.between(1, 3);
  config.queue = dice.pick({1024, 2, 5, 0});
  config.usage.boosts = !dice.one_in(4);
  config.classes.push_back({"BATCH", 70, 1s, 2s, Refusal::Wait, Refusal::Wait, 1});
  config.classes.push_back({"SHEDS", 60, 2s, 2s, Refusal::Wait, Refusal::FallbackCpu, {}});
  return config;
}

// Plays the arbiter and keeps its own books of what it was told and what it answered.
class Books {
 public:
  explicit Books(Dice& dice) : dice_(dice), config_(random_config(dice)), arbiter_(config_) {
    for (std::uint64_t gpu = 0; gpu < kGpus; ++gpu) arbiter_.add_gpu(GpuId{gpu});
  }
  const std::string& broken() const { return broken_; }
  const std::string& story() const { return story_; }

  void step() {
    switch (dice_.below(8)) {
      case 0:
      case 1:
      case 2:
        return ask();
      case 3:
        return give_back();
      case 4:
        return sample();
      case 5:
        return renew();
      case 6:
        if (dice_.one_in(8)) return change();
        [[fallthrough]];
      default:
        return pass(dice_.pick<Duration>({10ms, 100ms, 800ms, 3s, 1ns}));
    }
  }

 private:
  struct Entry {
    LeaseRequest request;
    Time asked{};
    Time until{};
    bool active = false;
  };

  void say(const std::string& line) {
    story_ += fmt::format("{} {}\n", to_text(now_.time_since_epoch()), line);
  }
  void must(bool good, const std::string& what) {
    if (!good && broken_.empty()) broken_ = what + "\n";
  }
  GpuId random_gpu() { return GpuId{dice_.below(kGpus)}; }

  void ask() {
    LeaseRequest request{LeaseId{++last_}, random_gpu(), kClasses[dice_.below(6)]};
    if (dice_.one_in(2)) request.max_wait = dice_.pick<Duration>({0s, 50ms, 1s, 5s});
    if (dice_.one_in(3)) request.hold_max = dice_.pick<Duration>({1ms, 500ms, 1h});
    if (dice_.one_in(5)) request.refusal = dice_.pick({Refusal::Skip, Refusal::FallbackCpu});
    if (dice_.one_in(5)) request.audio = 10s;
    if (dice_.one_in(3)) request.gpu_hold = 300ms;
    say(fmt::format("ask {} {} on {}", request.lease.value, request.task_class, request.gpu.value));
    const TaskClass& task_class = *arbiter_.find_class(request.task_class);
    entries_[request.lease] = {request, now_,
                               now_ + request.max_wait.value_or(task_class.max_wait)};
    auto result = arbiter_.ask(request, now_);
    must(static_cast<bool>(result), "a good request was refused");
    if (result) judge(*result);
  }
  std::optional<LeaseId> random_lease() {
    if (entries_.empty()) return std::nullopt;
    auto it = entries_.begin();
    std::advance(
        it, dice_.below(static_cast<std::uint32_t>(std::min<std::size_t>(entries_.size(), 256))));
    return it->first;
  }
  void give_back() {
    const auto lease = random_lease();
    if (!lease) return;
    say(fmt::format("release {}", lease->value));
    entries_.erase(*lease);
    auto result = arbiter_.release(*lease, now_);
    must(static_cast<bool>(result), "a lease that is there was refused");
    if (result) judge(*result);
  }
  void renew() {
    const auto lease = random_lease();
    if (!lease) return;
    say(fmt::format("renew {}", lease->value));
    Entry& entry = entries_.at(*lease);
    const auto until = arbiter_.renew(*lease, std::nullopt, now_);
    must(static_cast<bool>(until) == entry.active, "only an active lease is renewed");
    if (until) entry.until = *until;
  }
  void sample() {
    const GpuId gpu = random_gpu();
    const double busy = dice_.pick({10, 99, 84, 86, 79, 78});
    say(fmt::format("usage {} on {}", busy, gpu.value));
    judge(arbiter_.take_sample(gpu, UsageSample::of(now_, busy), now_));
  }
  void change() {
    config_.slots = dice_.between(1, 3);
    config_.usage.high_water = dice_.pick({85, 95, 80});
    say(fmt::format("slots {}, high water {}", config_.slots, config_.usage.high_water));
    judge(arbiter_.set_config(config_, now_));
  }
  // A caller that is late now and then.
  void pass(Duration duration) {
    const Time until = now_ + duration;
    if (dice_.one_in(4)) now_ = until;
    while (arbiter_.next_wakeup() && *arbiter_.next_wakeup() <= until) {
      late_ = now_ > *arbiter_.next_wakeup();
      now_ = std::max(now_, *arbiter_.next_wakeup());
      say("tick");
      judge(arbiter_.tick(now_));
      late_ = false;
      if (!broken_.empty()) return;
    }
    now_ = until;
    judge(Answers{});
  }

  int active_of(GpuId gpu, const std::string& task_class = "") const {
    int count = 0;
    for (const auto& [lease, entry] : entries_) {
      const bool counts = task_class.empty() || entry.request.task_class == task_class;
      count += entry.active && counts && entry.request.gpu == gpu;
    }
    return count;
  }

  void judge(const Answers& answers) {
    for (const Answer& answer : answers) judge(answer);
    for (std::uint64_t gpu = 0; gpu < kGpus; ++gpu) judge(GpuId{gpu});
    must(arbiter_.leases().size() == entries_.size(), "the arbiter lists other leases");
  }
  void judge(const Answer& answer) {
    const auto found = entries_.find(answer.lease);
    say(fmt::format("  {} {} {}", answer.lease.value, name_of(answer.outcome),
                    name_of(answer.reason)));
    if (found == entries_.end()) return must(false, "an answer to nobody");
    Entry& entry = found->second;
    if (answer.outcome == Outcome::Acquired) {
      must(!entry.active, "granted twice");
      first_in_line(entry);
      entry.active = true;
      entry.until = answer.expires;
      const TaskClass& task_class = *arbiter_.find_class(entry.request.task_class);
      must(active_of(entry.request.gpu) <= config_.slots, "more leases than slots");
      must(!task_class.slots || active_of(entry.request.gpu, task_class.name) <= *task_class.slots,
           "more leases than slots of the class");
      const Duration hold = entry.request.hold_max.value_or(task_class.hold_max);
      must(answer.expires == now_ + std::min(hold, task_class.hold_max), "a wrong deadline");
      must(answer.waited == now_ - entry.asked, "the wait is told wrong");
      must(late_ || now_ <= asked_until(entry), "granted too late");
      return;
    }
    if (answer.outcome == Outcome::Revoked) {
      must(entry.active, "revoked what was not granted");
      must(late_ ? now_ >= entry.until : now_ == entry.until, "revoked at the wrong time");
    } else {
      must(!entry.active, "refused what was granted");
      must(answer.retry_after > 0s, "no time to come again");
      if (answer.outcome == Outcome::Timeout) {
        must(late_ ? now_ >= entry.until : now_ == entry.until, "timed out at the wrong time");
      }
      if (answer.outcome == Outcome::QueueFull) last_in_line(entry);
    }
    entries_.erase(found);
  }
  Time asked_until(const Entry& entry) const {
    const TaskClass& task_class = *arbiter_.find_class(entry.request.task_class);
    return entry.asked + entry.request.max_wait.value_or(task_class.max_wait);
  }
  // Of the same class none that came earlier waits. Of a higher one none waits that could enter.
  void first_in_line(const Entry& granted) {
    const int priority = arbiter_.find_class(granted.request.task_class)->priority;
    for (const auto& [lease, other] : entries_) {
      if (other.active || other.request.gpu != granted.request.gpu) continue;
      if (lease == granted.request.lease) continue;
      const bool earlier = lease < granted.request.lease;
      if (other.request.task_class == granted.request.task_class) {
        must(!earlier || other.request.refusal != granted.request.refusal, "jumped its own queue");
      } else if (arbiter_.find_class(other.request.task_class)->priority > priority) {
        must(other.request.task_class == "BATCH", "a lower class was served first");
      }
    }
  }
  // Only a request of this moment fills the queue. The one that gives way is of the lowest class,
  // and the newest of it.
  void last_in_line(const Entry& refused) {
    const int priority = arbiter_.find_class(refused.request.task_class)->priority;
    bool somebody_came = refused.asked == now_;
    for (const auto& [lease, other] : entries_) {
      if (other.active || other.request.gpu != refused.request.gpu) continue;
      const int others = arbiter_.find_class(other.request.task_class)->priority;
      must(others >= priority, "a lower class stays in the full queue");
      must(others > priority || lease <= refused.request.lease, "a newer request stays");
      somebody_came |= other.asked == now_ && others > priority;
    }
    must(somebody_came, "queue full, later");
  }
  void judge(GpuId gpu) {
    int waiting = 0;
    for (const auto& [lease, entry] : entries_) {
      waiting += !entry.active && entry.request.gpu == gpu;
    }
    const auto view = arbiter_.gpu(gpu, now_);
    must(view->active == active_of(gpu), "the leases are counted wrong");
    must(view->waiting == waiting, "the waiters are counted wrong");
    must(waiting <= config_.queue, "the queue is longer than allowed");
    must(waiting == 0 || view->active > 0, "a GPU without a lease leaves somebody waiting");
    // Class slots may hold waiters back: of BATCH only.
    if (view->state != Admission::Normal || view->active >= config_.slots) return;
    for (const auto& [lease, entry] : entries_) {
      if (entry.active || entry.request.gpu != gpu) continue;
      must(entry.request.task_class == "BATCH" || tick_is_due(), "a free slot, and somebody waits");
    }
  }
  bool tick_is_due() const { return arbiter_.next_wakeup() && *arbiter_.next_wakeup() <= now_; }

  Dice& dice_;
  ArbiterConfig config_;
  Arbiter arbiter_;
  std::map<LeaseId, Entry> entries_;
  Time now_{1h};
  bool late_ = false;
  std::uint64_t last_ = 0;
  std::string story_;
  std::string broken_;
};

TEST(Leases, EachRequestHasItsAnswerOnTimeAndInOrder) {
  holds(3000, [] {
    const auto input = *bytes(1200);
    Dice dice(input);
    Books books(dice);
    while (!dice.over() && books.broken().empty()) books.step();
    if (!books.broken().empty()) RC_FAIL(books.broken() + books.story());
  });
}

TEST(Leases, TheSameCallsHaveTheSameAnswers) {
  holds(300, [] {
    const auto input = *bytes(1200);
    const auto play = [&] {
      Dice dice(input);
      Books books(dice);
      while (!dice.over()) books.step();
      return books.story();
    };
    RC_ASSERT(play() == play());
  });
}

}  // namespace
}  // namespace nvshare::properties
