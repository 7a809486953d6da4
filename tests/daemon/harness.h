#pragma once

// The real scheduler as a process, and programs that speak to it over its sockets.

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "wire/messages.h"
#include "wire/page.h"

namespace nvshare::daemon {

using nlohmann::json;

inline constexpr std::chrono::seconds kPatience{30};  // for what must happen, on a busy machine

// Waits until `holds` does, or gives up.
bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds patience = kPatience);

struct Ended {
  int status = -1;  // as of wait(); -1 when it did not end
  std::string err;
};

// A run directory of the test's own, a software card of its own, and a scheduler in it.
class SchedulerProcess {
 public:
  struct Setup {
    std::vector<std::string> arguments;
    std::vector<std::string> environment;
    unsigned descriptors = 0;  // at most so many; 0: as they are
    bool nvml = true;
    bool cgroups = false;  // of runs
  };
  SchedulerProcess() : SchedulerProcess(Setup{}) {}
  explicit SchedulerProcess(const Setup& setup);
  ~SchedulerProcess();
  SchedulerProcess(const SchedulerProcess&) = delete;

  const std::string& folder() const { return folder_; }
  std::string program_socket() const { return folder_ + "/scheduler.sock"; }
  std::string control_socket() const { return folder_ + "/control.sock"; }
  pid_t pid() const { return pid_; }
  // Everything it has logged.
  std::string log() const;
  std::size_t descriptors() const;
  bool alive() const;
  void signal(int number) const;
  // Waits for its end.
  Ended wait(std::chrono::milliseconds patience = kPatience);
  // Starts it again in the same folder, after its end. False: it does not serve.
  bool again() { return again(Setup{}); }
  bool again(const Setup& setup);
  // One more in the same folder, until it ends.
  Ended another(const std::vector<std::string>& arguments);

  // Over a connection of its own.
  json ask(const json& request) const;
  json status() const { return ask({{"op", "status"}}); }
  // A tenant of the status; null when it is not there.
  json tenant(const std::string& name) const;
  int clients() const;

 private:
  pid_t start(const std::vector<std::string>& arguments, const Setup& setup, int ready,
              const std::string& log) const;

  std::string folder_;
  pid_t pid_ = -1;
};

// One connection, as the interposer and `nvshare run` make it.
class TestProgram {
 public:
  explicit TestProgram(const SchedulerProcess& scheduler);
  // The same as a user, whom only root can be.
  TestProgram(const SchedulerProcess& scheduler, uid_t user);

  template <typename Message>
  bool say(const Message& message) {
    return send_packet(&message, sizeof message);
  }
  bool send_packet(const void* bytes, std::size_t size);
  // The next message of the type, within time; what comes before it is passed over.
  template <typename Message>
  std::optional<Message> hear(std::chrono::milliseconds patience = kPatience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (const wire::Header* header = next(until)) {
      if (const auto* message = wire::as<Message>(header)) return *message;
    }
    return std::nullopt;
  }
  // The scheduler has closed the connection.
  bool closed(std::chrono::milliseconds patience = kPatience);

  std::optional<wire::Welcome> hello(std::uint64_t allocated = 0, std::uint64_t resident = 0);
  std::optional<wire::Welcome> run_begin(const std::string& name, int cores = 100,
                                         std::uint64_t memory = 0, std::uint32_t flags = 0);
  std::optional<wire::View> look();
  std::optional<wire::IpcPeer> ipc_open(std::uint8_t owner, const wire::IpcMemory& memory);
  bool ipc_exports(std::uint8_t name);
  bool want() { return say(wire::make<wire::RequestGrant>()); }
  bool release(std::uint64_t grant, std::uint64_t used, bool more = false);
  // Whether it may, now or later; nothing when there was no answer.
  std::optional<bool> ask_memory(std::uint64_t bytes, bool movable = false);
  // It has moved that much, as it was told to.
  bool moved(std::uint64_t order, std::uint64_t out, std::uint64_t in);

  wire::Page* page() const { return page_; }
  int fd() const { return socket_.get(); }
  int arena() const { return arena_.get(); }  // the last piece that it was given
  int ipc() const { return ipc_.get(); }      // the last socket to another program
  void close() { socket_.reset(); }
  const std::string& refused() const { return refused_; }

 private:
  const wire::Header* next(std::chrono::steady_clock::time_point until);

  wire::Hello hello_{};
  UniqueFd socket_;
  UniqueFd arena_;
  UniqueFd ipc_;
  wire::Page* page_ = nullptr;  // never unmapped: the tests are short
  std::string refused_;
  alignas(8) char buffer_[wire::kMaxMessage];
};

// A child process that does `work` and is killed, if need be, at the end.
class Forked {
 public:
  explicit Forked(const std::function<void()>& work);
  ~Forked();
  Forked(const Forked&) = delete;
  pid_t pid() const { return pid_; }
  void kill_hard() const;
  // The status of wait(); -1 when it goes on.
  int wait(std::chrono::milliseconds patience = kPatience);

 private:
  pid_t pid_ = -1;
};

}  // namespace nvshare::daemon
