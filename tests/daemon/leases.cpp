#include "leases.h"

#include <fmt/format.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "daemon/http/loopback.h"

namespace nvshare::daemon {

Milliseconds median_of(std::vector<Milliseconds> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::string own_loopback_address() {
  static int port = 20'000;  // below those that the kernel gives to clients
  const auto pid = static_cast<unsigned>(getpid());
  return fmt::format("127.{}.{}.{}:{}", 1 + (pid >> 16) % 250, (pid >> 8) & 255, pid & 255, ++port);
}

// --- one service -------------------------------------------------------------------------------

void Service::send(const std::string& method, const std::string& path, const std::string& body,
                   const std::string& headers) {
  client_.send(fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n{}",
                           method, path, headers, body.size(), body));
}

Service::Answer Service::read() {
  const auto reply = client_.read();
  if (!reply) return {};
  return {reply->status, json::parse(reply->body, nullptr, false), reply->headers};
}

Service::Answer Service::call(const std::string& method, const std::string& path,
                              const std::string& body, const std::string& headers) {
  send(method, path, body, headers);
  return read();
}

void Service::send_ask(const std::string& task_class, const json& more) {
  json body{{"taskType", task_class}};
  body.update(more);
  send("POST", "/v1/leases", body.dump());
}

Service::Answer Service::ask(const std::string& task_class, const json& more) {
  send_ask(task_class, more);
  return read();
}

std::string Service::lease(const std::string& task_class, json more) {
  more["ownerPid"] = nullptr;
  const Answer answer = ask(task_class, more);
  EXPECT_EQ(answer.status, 201) << answer.body;
  return answer.body.value("leaseId", "");
}

// --- the scheduler -----------------------------------------------------------------------------

SchedulerProcess::Setup LeaseScheduler::setup_of(const std::string& address,
                                                 const std::vector<std::string>& settings,
                                                 const std::vector<std::string>& arguments) {
  Setup setup{.arguments = arguments, .environment = settings};
  setup.environment.push_back("NVSHARE_HTTP_LISTEN=" + address);
  return setup;
}

Service LeaseScheduler::try_service(Road road) const {
  sockaddr_storage to{};
  socklen_t length = 0;
  if (road == Road::Unix) {
    auto& address = reinterpret_cast<sockaddr_un&>(to);
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, api_socket().c_str(), sizeof address.sun_path - 1);
    length = sizeof address;
  } else {
    const auto parts = host_and_port(address_);
    const auto found = loopback_address(parts->host);
    to = found->address;
    length = found->length;
    reinterpret_cast<sockaddr_in&>(to).sin_port =
        htons(static_cast<std::uint16_t>(std::atoi(std::string(parts->port).c_str())));
  }
  Client client(UniqueFd(socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  return client.connect(to, length) ? Service(std::move(client)) : Service();
}

Service LeaseScheduler::service(Road road) const {
  Service made = try_service(road);
  EXPECT_GE(made.connection().fd(), 0) << std::strerror(errno);
  return made;
}

Service LeaseScheduler::service_of(uid_t user) const {
  // The kernel notes the effective user when a program connects.
  const uid_t own = geteuid();
  EXPECT_EQ(seteuid(user), 0);
  Service made = try_service(Road::Unix);
  if (seteuid(own) != 0) abort();
  EXPECT_GE(made.connection().fd(), 0);
  return made;
}

bool LeaseScheduler::usage_is_known() const {
  return eventually([&] { return gpu().value("gpu_admission_state", "") == "NORMAL"; });
}

Service waiting_service(const LeaseScheduler& scheduler, Road road, const std::string& task_class,
                        const json& more) {
  const int before = scheduler.waiting();
  Service service = scheduler.service(road);
  service.send_ask(task_class, more);
  EXPECT_TRUE(eventually([&] { return scheduler.waiting() == before + 1; }));
  return service;
}

}  // namespace nvshare::daemon
