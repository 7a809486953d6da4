#include "cli/commands/control_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ostream>

#include "cli/talk/control_client.h"

namespace nvshare::cli {

int complain(std::string_view command, std::string_view what, int code, Streams streams) {
  streams.err << fmt::format("nvshare {}: {}\n", command, what);
  return code;
}

Asked ask_scheduler(std::string_view command, const std::string& request, Streams streams) {
  const auto failed = [&](const std::string& what, int code) {
    return Asked{std::nullopt, complain(command, what, code, streams)};
  };
  const auto directory = find_run_directory(surroundings());
  if (!directory) return failed(directory.error().message, kFailed);
  auto client = ControlClient::connect(*directory);
  if (!client) return failed(client.error().message, kFailed);
  auto reply = client->ask(request);
  if (!reply) return failed(reply.error().message, kFailed);
  if (!reply->accepted) return failed(reply->error, kBadInput);
  return {std::move(reply->json), kGood};
}

bool wants_colour() {
  const char* terminal = std::getenv("TERM");
  const char* refused = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) != 0 && (refused == nullptr || *refused == 0) &&
         terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

}  // namespace nvshare::cli
