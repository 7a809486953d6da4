#include "cli/commands/control_session.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ostream>

#include "cli/show/lease_answers.h"
#include "cli/talk/control_client.h"

namespace nvshare::cli {
namespace {

constexpr Duration kAnswerWithin = 10s;

}  // namespace

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

Asked ask_api(std::string_view command, const HttpRequest& request, Streams streams) {
  const auto failed = [&](const std::string& what, int code) {
    return Asked{std::nullopt, complain(command, what, code, streams)};
  };
  const auto directory = find_run_directory(surroundings());
  if (!directory) return failed(directory.error().message, kFailed);
  const auto answer = ask_http(*directory, request, kAnswerWithin);
  if (!answer) return failed(answer.error().message, kFailed);
  const bool is_good = answer->status >= 200 && answer->status < 300;
  if (!is_good) return failed(refusal_text(answer->body), exit_code_of_status(answer->status));
  return {answer->body, kGood};
}

int exit_code_of_status(int status) {
  return status == 400 || status == 404 || status == 410 ? kBadInput : kFailed;
}

std::optional<TerminalSize> terminal_size() {
  const char* kind = std::getenv("TERM");
  winsize size{};
  if (kind != nullptr && std::strcmp(kind, "dumb") == 0) return std::nullopt;
  if (::isatty(STDOUT_FILENO) == 0) return std::nullopt;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return TerminalSize{};
  return TerminalSize{size.ws_row, size.ws_col};
}

bool wants_colour() {
  const char* terminal = std::getenv("TERM");
  const char* refused = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) != 0 && (refused == nullptr || *refused == 0) &&
         terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

}  // namespace nvshare::cli
