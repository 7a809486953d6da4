#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "integration/world.h"
#include "wire/channel.h"

// How programs that only look ask the scheduler, seen from its side.
namespace nvshare::integration {
namespace {

// In the place of a scheduler: does the same with whoever looks, and closes every connection (that
// of `nvshare run`, which comes again and again, too).
class Stand {
 public:
  Stand(const std::string& directory, std::function<void(int socket)> with_looks)
      : listener_(wire::listen_at((directory + "/" + wire::kProgramSocket).c_str(), 0600)),
        with_looks_(std::move(with_looks)),
        thread_([this] { serve(); }) {}
  ~Stand() {
    end_ = true;
    thread_.join();
    ::close(listener_);
  }
  Stand(const Stand&) = delete;
  Stand& operator=(const Stand&) = delete;

  int looks() const { return looks_; }

 private:
  static bool is_look(int socket) {
    alignas(8) char packet[wire::kMaxMessage];
    const int length = wire::receive(socket, packet, true);
    const auto* header = wire::look_at(packet, static_cast<std::size_t>(std::max(length, 0)));
    return wire::as<wire::Look>(header) != nullptr;
  }
  void serve() {
    for (; !end_; nap()) {
      for (int socket; (socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        if (is_look(socket)) {
          ++looks_;
          with_looks_(socket);
        }
        ::close(socket);
      }
    }
  }

  int listener_;
  std::function<void(int)> with_looks_;
  std::atomic<int> looks_{0};
  std::atomic<bool> end_{false};
  std::thread thread_;
};

class Looks : public World {
 protected:
  // A program in a run whose scheduler is gone.
  Process orphan() {
    Process scheduler = start_scheduler();
    Process one = probe("one", {"--mem", "256Mi"});
    EXPECT_EQ(ask(one, "nvml"), "used=0 free=268435456 total=268435456");
    scheduler.signal(SIGKILL);
    EXPECT_TRUE(scheduler.wait(20s));
    EXPECT_TRUE(eventually([&] { return ask(one, "nvml") == kTheCard; }, 20s));
    return one;
  }
  // So many times, too far apart for an answer to be remembered.
  void ask_now_and_then(Process& probe, int times) {
    for (int i = 0; i < times; ++i) {
      sleep(150ms);
      EXPECT_EQ(ask(probe, "nvml"), kTheCard);
    }
  }

  static constexpr const char* kTheCard = "used=0 free=4294967296 total=4294967296";
  static constexpr Duration kFresh = 100ms;
  static constexpr Duration kLeftAlone = 5s;
};

TEST_F(Looks, AnAnswerIsGoodForAMoment) {
  Process one = orphan();
  Stand stand(run_directory(), [](int socket) {
    // Of a newer version: longer than what is known now.
    struct {
      wire::View view = wire::make<wire::View>();
      std::uint64_t more = 1;
    } answer;
    answer.view.header.size = sizeof answer;
    answer.view.memory_limit = 1 << 20;
    answer.view.allocated = 1 << 10;
    wire::send(socket, &answer.view.header, true);
  });
  ASSERT_TRUE(
      eventually([&] { return ask(one, "nvml") == "used=1024 free=1047552 total=1048576"; }, 20s));
  const int before = stand.looks();
  const Duration begin = now();
  EXPECT_EQ(ask(one, "nvml 2000"), "used=1024 free=1047552 total=1048576");
  const auto most = 1 + (now() - begin) / kFresh;
  EXPECT_LE(stand.looks() - before, most);
  EXPECT_LT(most, 2000) << "says nothing: the machine is too slow";
}

TEST_F(Looks, WhoDoesNotKnowTheQuestionIsLeftAlone) {
  Process one = orphan();
  Stand stand(run_directory(), [](int) {});
  const Duration begin = now();
  ask_now_and_then(one, 10);
  EXPECT_GE(stand.looks(), 1);
  EXPECT_LE(stand.looks(), 1 + (now() - begin) / kLeftAlone);
}

TEST_F(Looks, WhoDoesNotAnswerIsLeftAlone) {
  Process one = orphan();
  std::vector<int> held;
  Stand stand(run_directory(), [&](int socket) { held.push_back(::dup(socket)); });
  const Duration begin = now();
  ask_now_and_then(one, 10);
  EXPECT_GE(stand.looks(), 1);
  EXPECT_LE(stand.looks(), 1 + (now() - begin) / kLeftAlone);
  for (const int socket : held) ::close(socket);
}

TEST_F(Looks, WhoAnswersNonsenseIsNotBelieved) {
  Process one = orphan();
  Stand stand(run_directory(), [](int socket) {
    auto answer = wire::make<wire::View>();
    answer.memory_limit = 1 << 20;
    answer.header.size = sizeof answer.header;  // and no more is sent
    wire::send(socket, &answer.header, true);
  });
  ask_now_and_then(one, 2);
  EXPECT_GE(stand.looks(), 1);
}

}  // namespace
}  // namespace nvshare::integration
