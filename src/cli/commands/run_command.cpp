#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <ostream>

#include "base/run_name.h"
#include "base/suggest.h"
#include "cli/commands/commands.h"
#include "cli/run/find_program.h"
#include "cli/run/installed.h"
#include "cli/run/limits.h"
#include "cli/run/private_scheduler.h"
#include "cli/run/shortage_text.h"
#include "cli/run/supervise.h"
#include "cli/run/tenant_link.h"
#include "config/backend.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

// A scheduler that was about to end may close on whoever just came.
constexpr int kTries = 20;
constexpr int kBetweenTries = 50;  // milliseconds

struct Wanted {
  std::string name;
  LimitWish limits;
  wire::Backend backend = wire::Backend::Default;
  uint32_t flags = 0;
  std::vector<std::string> words;
};

int complain(Streams streams, std::string_view what, int code) {
  streams.err << fmt::format("nvshare run: {}\n", what);
  return code;
}

Result<Wanted> read_wanted(const Arguments& arguments) {
  std::vector<std::string> wrong;
  Wanted wanted;
  wanted.words = arguments.positionals();
  wanted.limits = read_limits(arguments, wrong);
  if (const auto text = arguments.value("backend")) {
    const auto backend = config::backend_by_name(*text);
    if (!backend) {
      wrong.push_back(
          fmt::format("--backend: '{}' is not one of {}", *text, config::kBackendNames));
    }
    wanted.backend = backend.value_or(wire::Backend::Default);
  }
  if (arguments.has("oversubscribe-self")) {
    if (wanted.backend != wire::Backend::Default && wanted.backend != wire::Backend::Managed) {
      wrong.push_back(fmt::format(
          "--oversubscribe-self: only memory of the backend managed can be larger than the GPU, "
          "not {}",
          config::name_of(wanted.backend)));
    }
    wanted.backend = wire::Backend::Managed;
    wanted.flags |= wire::kOversubscribeSelf;
  }
  wanted.name = arguments.value("name").value_or(default_name(wanted.words[0], ::getpid()));
  if (const auto named = check_run_name(wanted.name); !named) {
    wrong.push_back(fmt::format("'{}': {}", wanted.name, named.error().message));
  }
  if (!wrong.empty()) return Error{join({wrong.begin(), wrong.end()}, "; ")};
  return wanted;
}

// Without a driver there is nothing to share.
int run_unshared(const Wanted& wanted, Streams streams) {
  streams.err
      << "nvshare run: no CUDA driver (libcuda.so.1) was found: the program runs unshared\n";
  std::vector<char*> arguments;
  for (const std::string& word : wanted.words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  return complain(streams, why_not_started(wanted.words[0], error), exit_code_of_exec(error));
}

struct Tenancy {
  UniqueFd connection;
  Joined joined;
};

Result<Tenancy> take_part(const RunDirectory& directory, const Wanted& wanted) {
  for (int tries = 1;; ++tries) {
    auto connection = connect_or_start(directory);
    if (!connection) return connection.error();
    auto joined =
        begin_run(connection->get(), wanted.name, wanted.limits, wanted.backend, wanted.flags);
    if (!joined) return joined.error();
    if (joined->closed && tries == kTries) return Error{joined->refusal};
    if (!joined->closed) return Tenancy{std::move(*connection), std::move(*joined)};
    ::poll(nullptr, 0, kBetweenTries);
  }
}

// After the scheduler was away: the same tenant again, or nothing.
UniqueFd take_part_again(const std::string& directory, const Wanted& wanted) {
  const auto path = socket_path(directory, wire::kProgramSocket);
  if (!path) return UniqueFd();
  UniqueFd connection(wire::connect_to(path->c_str()));
  if (!connection) return UniqueFd();
  const auto joined =
      begin_run(connection.get(), wanted.name, wanted.limits, wanted.backend, wanted.flags);
  return joined && joined->accepted ? std::move(connection) : UniqueFd();
}

int run_shared(const Wanted& wanted, const std::string& library, Streams streams) {
  const auto directory = find_run_directory(surroundings());
  if (!directory) return complain(streams, directory.error().message, kFailed);
  if (directory->system_silent) {
    streams.err << "nvshare run: the system's scheduler does not answer: using a private one\n";
  }
  auto tenancy = take_part(*directory, wanted);
  if (!tenancy) return complain(streams, tenancy.error().message, kFailed);
  if (!tenancy->joined.accepted) {
    return complain(streams, tenancy->joined.refusal,
                    tenancy->joined.other_version ? kFailed : kBadInput);
  }
  if (tenancy->joined.flags != wanted.flags) {
    streams.err << "nvshare run: the scheduler is older than nvshare and does not know "
                   "--oversubscribe-self: the program can have no more than the GPU\n";
  }
  TenantConnection connection;
  connection.socket = std::move(tenancy->connection);
  connection.again = [&] { return take_part_again(directory->path, wanted); };
  connection.tell = [&](bool back) {
    streams.err << fmt::format("nvshare run: the scheduler is {}\n",
                               back ? "back" : "gone: limits do not hold until it is back");
  };
  connection.tell_shortage = [&](const wire::Shortage& shortage) {
    streams.err << fmt::format("nvshare run: {}\n", shortage_text(wanted.name, shortage));
  };
  const Ending ending = supervise({wanted.words, sharing_environment(library, directory->path)},
                                  std::move(connection));
  if (ending.exec_error != 0) {
    return complain(streams, why_not_started(wanted.words[0], ending.exec_error),
                    exit_code_of_exec(ending.exec_error));
  }
  return end_like(ending.status);
}

int run(const Arguments& arguments, Streams streams) {
  if (arguments.positionals().empty()) {
    return complain(streams, "CMD is missing (see nvshare run --help)", kBadInput);
  }
  const auto wanted = read_wanted(arguments);
  if (!wanted) return complain(streams, wanted.error().message, kBadInput);
  if (const int error = find_program(wanted->words[0]); error != 0) {
    return complain(streams, why_not_started(wanted->words[0], error), exit_code_of_exec(error));
  }
  const auto library = preload_library();
  if (!library) return complain(streams, library.error().message, kFailed);
  if (!driver_is_there()) return run_unshared(*wanted, streams);
  return run_shared(*wanted, *library, streams);
}

}  // namespace

Command run_command() {
  CommandSpec spec;
  spec.name = "run";
  spec.summary = "Run a program that shares the GPU with others";
  spec.positionals = {{"CMD", "the program, with its arguments", false}};
  spec.options = {{"name", 'n', "NAME", "what to call it; default: the program and a number"}};
  for (const Option& option : limit_options()) spec.options.push_back(option);
  spec.options.push_back({"backend", 0, "NAME",
                          "what becomes of its memory: native stays on the GPU, swap can leave it, "
                          "managed is unified memory"});
  spec.options.push_back({"oversubscribe-self", 0, "",
                          "it may have more memory than the GPU by itself, which makes it slow; "
                          "implies --backend managed"});
  spec.takes_program = true;
  spec.more =
      "Without a scheduler that answers, a private one is started; it ends by itself.\n"
      "The exit code is the program's; 127 and 126 when it cannot be found or started,\n"
      "2 for wrong values and 1 when it cannot share: then nothing is started.\n\n"
      "examples:\n"
      "  nvshare run -- python train.py\n"
      "  nvshare run --name train --cores 40 --mem 8Gi -- python train.py\n"
      "  nvshare run --priority 5 -- ./serve";
  return {spec, run};
}

}  // namespace nvshare::cli
