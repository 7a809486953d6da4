// Stands in for nvshare-scheduler in the tests of `nvshare run`: answers RunBegin, and writes what
// it saw into its run directory: "starts" has its process id, "runs" a line for each tenant. The
// run "placed" gets a GPU. The run "refused-later" is refused when it comes back. The programs of
// "waits-when-lost" wait while the scheduler is away.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "wire/channel.h"

namespace {

using namespace nvshare;

constexpr unsigned kGoneAfter = 120;  // seconds, whatever the test does

void add_line(const std::string& path, const std::string& line) {
  FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return;
  std::fputs((line + "\n").c_str(), file);
  std::fclose(file);
}

void refuse(int connection, const std::string& why, uint16_t major, uint32_t flags = 0) {
  auto refused = wire::make<wire::Refused>();
  refused.major = major;
  refused.flags = flags;
  wire::put_text(refused.reason, sizeof refused.reason, why.c_str());
  wire::send(connection, &refused.header, false);
}

// Refuses a run before its message was read, and closes. Whoever asked is held meanwhile, so that
// it finds both at once.
void refuse_unread(int connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length);
  ::kill(peer.pid, SIGSTOP);
  refuse(connection, "refused unread", wire::kMajor);
  ::close(connection);
  ::kill(peer.pid, SIGCONT);
}

void tell_shortage(int connection) {
  auto shortage = wire::make<wire::Shortage>();
  shortage.asked = 3ull << 29;
  shortage.used = 3ull << 30;
  shortage.limit = 4ull << 30;
  shortage.gpu = 16ull << 30;
  wire::send(connection, &shortage.header, false);
}

// Only where one was asked for.
std::string backend_in(const wire::RunBegin& begin) {
  if (begin.backend == wire::Backend::Default) return "";
  return " backend " + std::to_string(static_cast<unsigned>(begin.backend));
}

std::string gpus_in(const wire::RunBegin& begin) {
  if (begin.choice != wire::GpuChoice::Kept) return "";
  return " keeps " + std::to_string(begin.gpu_count) + " from " + std::to_string(begin.gpus[0][0]);
}

std::string flags_in(const wire::RunBegin& begin) {
  const uint32_t others = begin.flags & ~wire::kComesBack;
  return (others != 0 ? " flags " + std::to_string(others) : "") +
         (others != begin.flags ? " comes back" : "");
}

std::string name_in(const wire::RunBegin& begin) {
  return std::string(begin.name, wire::text_length(begin.name, sizeof begin.name));
}

class Server {
 public:
  explicit Server(std::string directory) : directory_(std::move(directory)) {
    listening_ = wire::listen_at((directory_ + "/" + wire::kProgramSocket).c_str(), 0600);
  }
  bool listens() const { return listening_ >= 0; }

  [[noreturn]] void serve() {
    for (;;) {
      std::vector<pollfd> waiting{{listening_, POLLIN, 0}};
      for (const auto& [connection, name] : runs_) waiting.push_back({connection, POLLIN, 0});
      ::poll(waiting.data(), waiting.size(), -1);
      for (const pollfd& one : waiting) {
        if (one.revents == 0) continue;
        if (one.fd == listening_) {
          const int connection = ::accept(listening_, nullptr, nullptr);
          if (connection >= 0) runs_[connection] = "";
        } else if (is_to_be_refused_unread(one.fd)) {
          refuse_unread(one.fd);
          runs_.erase(one.fd);
        } else if (!read_from(one.fd)) {
          ::close(one.fd);
          runs_.erase(one.fd);
        }
      }
    }
  }

 private:
  static bool is_to_be_refused_unread(int connection) {
    alignas(8) char packet[wire::kMaxMessage];
    const auto length = ::recv(connection, packet, sizeof packet, MSG_PEEK | MSG_DONTWAIT);
    if (length <= 0) return false;
    const auto* begin =
        wire::as<wire::RunBegin>(wire::look_at(packet, static_cast<size_t>(length)));
    return begin != nullptr && name_in(*begin) == "refused-unread";
  }

  bool read_from(int connection) {
    alignas(8) char packet[wire::kMaxMessage];
    const int length = wire::receive(connection, packet, false);
    if (length <= 0) return false;
    const auto* begin =
        wire::as<wire::RunBegin>(wire::look_at(packet, static_cast<size_t>(length)));
    if (begin == nullptr) return false;
    const std::string name = name_in(*begin);
    if (name == "of-another-version") {
      refuse(connection, "speaks another version", wire::kMajor + 1);
      return false;
    }
    if (name == "refused-later" && (begin->flags & wire::kComesBack) != 0) {
      refuse(connection, "there is no place", wire::kMajor);
      return false;
    }
    if (name == "closed-on-once" && !closed_) {
      closed_ = true;
      return false;
    }
    for (const auto& [other, used] : runs_) {
      if (used != name) continue;
      refuse(connection, "the name '" + name + "' is in use", wire::kMajor, wire::kRefusedName);
      return false;
    }
    runs_[connection] = name;
    add_line(directory_ + "/runs", name + " " + std::to_string(begin->memory_limit) + " " +
                                       std::to_string(begin->core_limit) + " " +
                                       std::to_string(begin->priority) + backend_in(*begin) +
                                       gpus_in(*begin) + flags_in(*begin));
    auto welcome = wire::make<wire::Welcome>();
    if (name != "of-an-older-scheduler") welcome.flags = begin->flags;
    if (name == "waits-when-lost") welcome.when_lost = wire::WhenLost::Wait;
    if (name == "placed") {
      welcome.gpu_count = 1;
      welcome.gpus[0][0] = 7;
    }
    if (wire::send(connection, &welcome.header, false) != 0) return false;
    if (name == "too-large") tell_shortage(connection);
    return true;
  }

  std::string directory_;
  int listening_ = -1;
  std::map<int, std::string> runs_;
  bool closed_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  ::alarm(kGoneAfter);
  std::string directory;
  int ready = -1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--run-dir") == 0)
      directory = argv[++i];
    else if (std::strcmp(argv[i], "--ready-fd") == 0)
      ready = std::atoi(argv[++i]);
  }
  add_line(directory + "/starts", std::to_string(::getpid()));
  const char* preload = std::getenv("LD_PRELOAD");
  std::fprintf(stderr, "fake scheduler, preloaded: %s\n", preload != nullptr ? preload : "nothing");
  // Slow, so that whoever starts a second one has the time to.
  ::usleep(300'000);
  Server server(directory);
  if (!server.listens()) return 1;
  if (ready >= 0 && ::write(ready, "1", 1) != 1) return 1;
  if (ready >= 0) ::close(ready);
  server.serve();
}
