#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/log.h"
#include "daemon/serve/reactor.h"
#include "daemon/serve/spare_descriptor.h"

namespace nvshare::daemon {

// Lines in, lines out, over a stream socket. Bounded in connections and in what is kept of each;
// who does not read his answer is not read from.
class ControlServer {
 public:
  using Answer = std::function<std::string(std::string_view line)>;

  ControlServer(Reactor& reactor, Log& log, Answer answer)
      : reactor_(reactor), log_(log), answer_(std::move(answer)) {}
  ~ControlServer();

  // Takes connections from `listener` (non-blocking) from now on.
  Result<void> serve(UniqueFd listener);

  static constexpr std::size_t kLongestRequest = 64 * 1024;
  static constexpr std::size_t kMostConnections = 64;

 private:
  struct Connection {
    UniqueFd socket;
    std::string in;
    std::string out;
    Time last_used{};
    bool ends = false;  // after what is still to be written
  };

  void accept_some();
  bool make_room();
  void ready(int fd, std::uint32_t events);
  bool read_some(Connection& connection);
  bool answer_next(Connection& connection);
  static bool write_some(Connection& connection);
  void close(int fd);

  Reactor& reactor_;
  Log& log_;
  Answer answer_;
  UniqueFd listener_;
  SpareDescriptor spare_;
  std::map<int, Connection> connections_;
};

// None when there is no such group.
std::optional<gid_t> group_named(const std::string& name);
// A listening stream socket at `path`, which is replaced: nobody else listens there (the run
// directory is locked).
Result<UniqueFd> listen_for_streams(const std::string& path, unsigned mode);
// The same with mode 0600; with a group that exists, 0660 and that group's.
Result<UniqueFd> listen_for_control(const std::string& path, const std::string& group);

}  // namespace nvshare::daemon
