#pragma once

// A scheduler that gives leases over both roads, and services that ask it.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/http/testing_client.h"
#include "harness.h"

namespace nvshare::daemon {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

inline Milliseconds since(Clock::time_point begin) {
  return Clock::now() - begin;
}
Milliseconds median_of(std::vector<Milliseconds> times);

enum class Road { Unix, Tcp };
inline constexpr Road kRoads[]{Road::Unix, Road::Tcp};

// A loopback address with a port that no other test and no program has: the process's number is in
// the address.
std::string own_loopback_address();

// A service on a connection of its own, which stays open between requests.
class Service {
 public:
  struct Answer {
    int status = 0;  // 0: the connection has ended
    json body;
    std::map<std::string, std::string> headers;
  };

  Service() = default;
  explicit Service(Client client) : client_(std::move(client)) {}

  void send(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& headers = "");
  Answer read();
  Answer call(const std::string& method, const std::string& path, const std::string& body = "",
              const std::string& headers = "");
  // Asks for a lease. `more`: what else the request says.
  void send_ask(const std::string& task_class, const json& more = json::object());
  Answer ask(const std::string& task_class, const json& more = json::object());
  // The id of a lease that is granted at once, and that does not end with this process.
  std::string lease(const std::string& task_class, json more = json::object());
  int release(const std::string& id) { return call("DELETE", "/v1/leases/" + id).status; }
  Client& connection() { return client_; }

 private:
  Client client_;
};

class LeaseScheduler : public SchedulerProcess {
 public:
  // `settings`: "NVSHARE_NAME=VALUE".
  explicit LeaseScheduler(const std::vector<std::string>& settings = {},
                          const std::vector<std::string>& arguments = {})
      : LeaseScheduler(own_loopback_address(), settings, arguments) {}
  LeaseScheduler(const std::string& address, const std::vector<std::string>& settings,
                 const std::vector<std::string>& arguments)
      : SchedulerProcess(setup_of(address, settings, arguments)),
        address_(address),
        setup_(setup_of(address, settings, arguments)) {}

  std::string api_socket() const { return folder() + "/api.sock"; }
  // The same settings again, after its end.
  bool again() { return SchedulerProcess::again(setup_); }
  // A service without a connection: nobody listens there.
  Service try_service(Road road) const;
  Service service(Road road = Road::Unix) const;
  // As another user, whom only root can be.
  Service service_of(uid_t user) const;

  json get(const std::string& path) const { return service().call("GET", path).body; }
  // What the status says of the first GPU.
  json gpu() const { return get("/v1/status")["gpus"][0]; }
  int waiting() const { return gpu().value("gpu_queue_len", -1); }
  int active() const { return gpu().value("active_leases", -1); }
  // Before that, classes that do not wait are refused.
  bool usage_is_known() const;

 private:
  static Setup setup_of(const std::string& address, const std::vector<std::string>& settings,
                        const std::vector<std::string>& arguments);

  std::string address_;
  Setup setup_;
};

// A service that waits for a lease; returns when it is in the queue.
Service waiting_service(const LeaseScheduler& scheduler, Road road, const std::string& task_class,
                        const json& more = json::object());

}  // namespace nvshare::daemon
