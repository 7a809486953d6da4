#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/http/http_server.h"
#include "daemon/lease/leases.h"
#include "daemon/lease/status_feed.h"
#include "daemon/lease/status_push.h"
#include "daemon/settings.h"

namespace nvshare::daemon {

// The HTTP requests of services and of the dispatcher; docs/arbiter.md has them. All that is handed
// in outlives it.
class LeaseApi {
 public:
  // Takes a change of settings whole or not at all. Answers whether it outlasts a restart.
  using Change = std::function<Result<bool>(const SettingTexts&)>;
  using WallOf = std::function<std::int64_t(Time)>;  // in milliseconds since 1970
  using Reply = std::function<void(HttpCall, const HttpReply&)>;
  using UserOf = std::function<std::optional<std::uint32_t>(int pid)>;

  struct World {
    const Broker& broker;
    const Settings& settings;
    Leases::Now now;
    Change change;
    UserOf user_of;
    WallOf wall_of;
    std::uint32_t own_uid = 0;  // of the scheduler: an administrator beside root
    std::optional<std::uint32_t> admin_group{};
    std::function<std::optional<PushCounts>()> push{};  // none while nothing is pushed
  };

  LeaseApi(Leases& leases, World world);

  // Where answers go to calls that have waited.
  void set_reply(Reply reply) { reply_ = std::move(reply); }
  // Nothing: the call waits.
  std::optional<HttpReply> handle(HttpCall call, const HttpRequest& request);
  // The answer is sent, or nobody is there for it: then the lease that it is about is given back.
  void ended(HttpCall call, bool sent);
  StatusText status() const;
  // The streams of the status; its end of the turn is the caller's to call.
  StatusFeed& feed() { return feed_; }

 private:
  struct Json;  // keeps the JSON library out of this header
  struct Route;
  static const std::vector<Route>& routes();

  // The lists that were printed since leases have changed: by the user whose names of leases they
  // show, or all users', and by length. Many callers ask in one turn.
  struct Lists {
    using Key = std::tuple<bool, std::optional<std::uint32_t>, std::int64_t>;
    Time at{};
    std::uint64_t changes = 0;
    std::map<Key, HttpReply> replies;
  };

  Leases& leases_;
  World world_;
  StatusFeed feed_;
  Lists lists_;
  Reply reply_;
  std::map<HttpCall, LeaseId> asked_;  // whose answer is not sent
  std::map<LeaseId, HttpCall> calls_;  // of requests that wait
};

}  // namespace nvshare::daemon
