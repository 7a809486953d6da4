// What must hold whatever clients do and however often the scheduler is started again: when nothing
// changes any more, every client that fits gets to run, and the books are what the clients have.

#include <numeric>
#include <random>

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

Bytes bytes_of(std::uint64_t count) {
  return Bytes{static_cast<std::int64_t>(count)};
}
Bytes sum_of(const std::vector<Bytes>& chunks) {
  return std::accumulate(chunks.begin(), chunks.end(), Bytes{});
}

struct Question {
  Bytes bytes{};
  bool movable = false;
};

// A program as the library makes it: memory that moves in whole chunks, and pinned memory.
struct Program {
  std::string name;
  wire::Backend backend = wire::Backend::Swap;
  core::Limits limits;
  std::vector<Bytes> here;
  std::vector<Bytes> away;
  Bytes pinned{};
  std::map<std::uint64_t, Question> asked;  // of pinned memory: it waits
  ClientId id;                              // with the present scheduler
  int worked = 0;

  Bytes allocated() const { return sum_of(here) + sum_of(away) + pinned; }
  Bytes resident() const { return sum_of(here) + pinned; }
};

struct Restarts : testing::TestWithParam<unsigned> {
  Restarts() { restart(); }

  std::uint32_t below(std::size_t n) { return static_cast<std::uint32_t>(random() % n); }
  Program* some() { return programs.empty() ? nullptr : &programs[below(programs.size())]; }
  Bytes some_bytes() { return mib(32) * static_cast<std::int64_t>(1 + below(8)); }

  void join(Program& program) {
    auto hello = TestBroker::hello();
    hello.allocated = static_cast<std::uint64_t>(program.allocated().count);
    hello.resident = static_cast<std::uint64_t>(program.resident().count);
    hello.pinned = static_cast<std::uint64_t>(program.pinned.count);
    const auto tenant = t->broker.begin_run({TenantKind::Run, program.name, 1000}, program.limits,
                                            t->now, program.backend);
    ASSERT_TRUE(tenant) << tenant.error().message;
    program.id = t->join(*tenant, hello);
    t->want(program.id);
  }
  void begin() {
    if (programs.size() == 6) return;
    constexpr wire::Backend kBackends[] = {wire::Backend::Swap, wire::Backend::Managed,
                                           wire::Backend::Native};
    Program program;
    program.name = "p" + std::to_string(next_name++);
    program.backend = kBackends[below(3)];
    if (below(3) == 0) program.limits.memory = gib(1) * static_cast<std::int64_t>(1 + below(6));
    programs.push_back(program);
    join(programs.back());
  }
  void die() {
    if (programs.empty()) return;
    const std::size_t which = below(programs.size());
    t->broker.leave(programs[which].id, t->now);
    programs.erase(programs.begin() + static_cast<std::ptrdiff_t>(which));
  }

  // A new scheduler knows nothing of what came before. Meanwhile unified memory came when it was
  // touched, and requests that nobody answers any more are over.
  void restart() {
    t = std::make_unique<TestBroker>(quick());
    liars.clear();
    std::shuffle(programs.begin(), programs.end(), random);
    for (Program& program : programs) {
      program.asked.clear();
      if (program.backend == wire::Backend::Managed && below(2) == 0) {
        program.here.insert(program.here.end(), program.away.begin(), program.away.end());
        program.away.clear();
      }
    }
    for (Program& program : programs) {
      if (below(4) == 0) lie();
      join(program);
      t->pass(Duration{below(300'000'000)});
    }
  }
  void lie() {
    auto hello = TestBroker::hello();
    hello.allocated = static_cast<std::uint64_t>(gib(1 + below(20)).count);
    hello.resident = std::min<std::uint64_t>(hello.allocated, hello.gpu_memory);
    hello.pinned = below(2) == 0 ? 0 : hello.resident;
    liars.push_back(t->join(t->tenant("liar" + std::to_string(next_name++)), hello));
  }
  void end_lies() {
    for (const ClientId liar : liars) t->broker.leave(liar, t->now);
    liars.clear();
  }

  void ask(Program& program, Bytes bytes, bool movable) {
    auto message = wire::make<wire::MemoryRequest>();
    message.request = ++t->next_request;
    message.bytes = static_cast<std::uint64_t>(bytes.count);
    message.movable = movable ? 1 : 0;
    program.asked[message.request] = {bytes, movable};
    t->say(program.id, message);
    hear(program);
  }
  static void take(Program& program, std::vector<Bytes>& to, std::uint64_t request) {
    const Question asked = program.asked[request];
    if (!asked.movable) {
      if (&to != &program.here) return;  // it waits on
      program.pinned += asked.bytes;
    } else {
      for (Bytes left = asked.bytes; left > Bytes{}; left -= std::min(left, kChunk)) {
        to.push_back(std::min(left, kChunk));
      }
    }
    program.asked.erase(request);
  }
  void hear(Program& program) {
    for (const auto& later : t->outbox.take<wire::MemoryWait>(program.id)) {
      take(program, program.away, later.request);
    }
    for (const auto& yes : t->outbox.take<wire::MemoryAvailable>(program.id)) {
      take(program, program.here, yes.request);
    }
    for (const auto& no : t->outbox.take<wire::MemoryRefused>(program.id)) {
      program.asked.erase(no.request);
    }
  }
  void free(Program& program) {
    if (below(4) == 0 && program.pinned > Bytes{}) {
      const Bytes bytes = std::min(program.pinned, some_bytes());
      program.pinned -= bytes;
      return t->free(program.id, bytes, bytes, bytes);
    }
    auto& from = below(2) == 0 ? program.here : program.away;
    if (from.empty()) return;
    const Bytes bytes = from.back();
    from.pop_back();
    t->free(program.id, bytes, &from == &program.here ? bytes : Bytes{});
  }
  void obey(Program& program) {
    auto outs = t->outbox.take<wire::SwapOut>(program.id);
    auto ins = t->outbox.take<wire::SwapIn>(program.id);
    auto out = outs.begin();
    const auto send_out = [&](const wire::SwapOut& order) {
      Bytes moved{};
      while (moved < bytes_of(order.bytes) && !program.here.empty()) {
        moved += program.here.back();
        program.away.push_back(program.here.back());
        program.here.pop_back();
      }
      t->moved(program.id, order.order, moved, {});
    };
    for (const auto& in : ins) {
      for (; out != outs.end() && out->order < in.order; ++out) send_out(*out);
      Bytes moved{};
      while (!program.away.empty() && moved + program.away.back() <= bytes_of(in.bytes)) {
        moved += program.away.back();
        program.here.push_back(program.away.back());
        program.away.pop_back();
      }
      t->moved(program.id, in.order, {}, moved);
    }
    for (; out != outs.end(); ++out) send_out(*out);
  }
  void work(Program& program) {
    t->outbox.take<wire::Drop>(program.id);
    const std::uint64_t grant = t->granted(program.id);
    if (grant == 0) return;
    program.worked += program.away.empty() ? 1 : 0;  // otherwise it gives it back unused
    t->release(program.id, grant, 1ms, true);
  }
  void everybody_works() {
    for (int i = 0; i < 2; ++i) {
      for (Program& program : programs) {
        hear(program);
        obey(program);
        work(program);
      }
    }
    t->pass(100ms);
    t->broker.sample(t->now);
  }

  void anything() {
    Program* program = some();
    switch (below(16)) {
      case 0:
        return begin();
      case 1:
        return below(4) == 0 ? die() : begin();
      case 2:
        return below(3) == 0 ? restart() : everybody_works();
      case 3:
        return below(2) == 0 ? lie() : end_lies();
      case 4:
        return t->broker.gpu_measured(
            GpuId{0}, {}, {}, Overhead{mib(600), static_cast<int>(programs.size())}, t->now);
      case 5:
        if (program != nullptr) raise_limit(*program);
        return;
      case 6:
      case 7:
        if (program != nullptr) free(*program);
        return;
      case 8:
        if (program != nullptr) ask(*program, some_bytes(), false);
        return;
      case 9:
      case 10:
      case 11:
        if (program == nullptr || program->backend == wire::Backend::Native) return;
        return ask(*program, some_bytes() * static_cast<std::int64_t>(1 + below(8)), true);
        return;
      default:
        return everybody_works();
    }
  }
  // As a refusal advises. The next scheduler does not know of it.
  void raise_limit(Program& program) {
    if (!program.limits.memory) return;
    core::Limits higher = program.limits;
    higher.memory = gib(10);
    const TenantId tenant = t->broker.clients().at(program.id).tenant;
    ASSERT_TRUE(t->broker.set_limits(tenant, higher, t->now));
  }

  bool fits(const Program& program) const {
    Bytes others{};
    for (const Program& other : programs) {
      if (&other == &program) continue;
      others += other.pinned;
      for (const auto& [number, asked] : other.asked) others += asked.bytes;
    }
    return program.allocated() + others <= *t->broker.core().safe_limit(GpuId{0});
  }
  void expect_all_well() {
    end_lies();
    for (Program& program : programs) program.worked = 0;
    for (int i = 0; i < 300; ++i) everybody_works();
    for (const Program& program : programs) {
      const auto view = t->broker.core().view(program.id);
      const core::MemoryAccount& memory = t->broker.clients().at(program.id).memory;
      SCOPED_TRACE(program.name + ": " + *t->broker.core().explain(program.id, t->now));
      EXPECT_TRUE(program.worked > 0 || !fits(program));
      EXPECT_EQ(memory.allocated() - memory.awaited(), program.allocated());
      EXPECT_EQ(view->allocated, memory.allocated());
      if (memory.doubted() == Bytes{}) {
        EXPECT_EQ(view->resident, program.resident());
      }
      if (!memory.is_doubted()) {
        EXPECT_EQ(view->pinned, program.pinned);
      }
    }
    for (const auto& [id, why] : t->outbox.disconnected) ADD_FAILURE() << id.value << ": " << why;
    EXPECT_EQ(t->lines.find("not_booked"), std::string::npos);
  }

  static constexpr Bytes kChunk = mib(256);
  std::mt19937 random{GetParam()};
  std::unique_ptr<TestBroker> t;
  std::vector<Program> programs;
  std::vector<ClientId> liars;
  int next_name = 0;
};

TEST_P(Restarts, EverybodyThatFitsRunsAndTheBooksAreRight) {
  for (int phase = 0; phase < 4 && !HasFailure(); ++phase) {
    for (int i = 0; i < 60; ++i) anything();
    if (phase % 2 == 1) restart();
    expect_all_well();
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, Restarts, testing::Range(0u, 60u));

}  // namespace
}  // namespace nvshare::daemon
