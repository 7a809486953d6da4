#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <ostream>

#include "base/suggest.h"
#include "cli/commands/commands.h"
#include "cli/run/find_program.h"
#include "cli/run/run_directory.h"
#include "softgpu/config.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigVariable = "NVSHARE_SOFTGPU_CONFIG";

// Variables that the program gets beside those that are there already.
using Variables = std::map<std::string, std::string>;

int mistake(Streams streams, std::string_view what, int code = kBadInput) {
  streams.err << fmt::format("nvshare softgpu: {}\n", what);
  return code;
}

// A setting given on the command line: what it was called there, and what it says.
struct Given {
  std::string option;
  std::string key;
  std::string value;
};

Result<std::vector<Given>> given_settings(const Arguments& arguments) {
  std::vector<Given> given;
  for (const char* key : {"memory", "count", "card"}) {
    if (const auto value = arguments.value(key)) {
      given.push_back({fmt::format("--{}", key), key, *value});
    }
  }
  for (const std::string& text : arguments.values("set")) {
    const std::size_t equals = text.find('=');
    if (equals == text.npos || equals == 0) {
      return Error{fmt::format("--set: '{}' is not KEY=VALUE", text)};
    }
    const std::string key = text.substr(0, equals);
    given.push_back({fmt::format("--set {}", key), key, text.substr(equals + 1)});
  }
  return given;
}

Result<void> check(const Given& given) {
  const softgpu::Setting* setting = softgpu::find_setting(given.key);
  if (setting == nullptr) {
    std::vector<std::string_view> keys;
    for (const softgpu::Setting& one : softgpu::settings()) keys.push_back(one.key);
    return Error{fmt::format("no such setting{}", did_you_mean(given.key, keys))};
  }
  softgpu::Config scratch;
  return setting->value.set(scratch, given.value);
}

// What the command line sets, or all that is wrong with it in one line.
Result<Variables> variables_of(const Arguments& arguments) {
  const auto given = given_settings(arguments);
  if (!given) return given.error();
  Variables variables;
  std::vector<std::string> wrong;
  for (const Given& one : *given) {
    if (const auto checked = check(one); !checked) {
      wrong.push_back(fmt::format("{}: {}", one.option, checked.error().message));
    }
    variables[softgpu::environment_name(one.key)] = one.value;
  }
  if (!wrong.empty()) return Error{join({wrong.begin(), wrong.end()}, "; ")};
  // Absolute, for the program may change its folder before it opens the card.
  if (const auto file = arguments.value("config")) {
    std::error_code failed;
    variables[kConfigVariable] = fs::absolute(*file, failed).string();
  }
  return variables;
}

// The settings that the program will find.
Result<softgpu::Config> settings_with(const Variables& variables) {
  return softgpu::load_config([&](const std::string& name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? std::getenv(name.c_str()) : found->second.c_str();
  });
}

std::string in_quotes(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

// As a file that --config takes.
int print(const softgpu::Config& config, Streams streams) {
  for (const softgpu::Setting& setting : softgpu::settings()) {
    const std::string value = setting.value.get(config);
    const bool bare = value == "true" || value == "false" ||
                      (!value.empty() && value.size() < 18 &&
                       value.find_first_not_of("0123456789") == value.npos);
    streams.out << fmt::format("{} = {}\n", setting.key, bare ? value : in_quotes(value));
  }
  return kGood;
}

// Where the libraries are, seen from this program: in the build as installed.
Result<std::string> library_folder() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  const fs::path folder = program.parent_path().parent_path() / "lib" / "softgpu";
  if (failed || !fs::exists(folder / "libcuda.so.1", failed)) {
    return Error{fmt::format("there is no software GPU in {}", folder.string())};
  }
  return folder.string();
}

// So that `nvshare softgpu -- nvshare status` means this nvshare where none is installed.
void add_own_folder_to_path(Variables& variables) {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  const char* path = std::getenv("PATH");
  if (failed || path == nullptr) return;
  variables["PATH"] = fmt::format("{}:{}", path, program.parent_path().string());
}

// Becomes the program, so that its exit code and its signals are its own. Comes back only when it
// cannot be started.
int become(const std::vector<std::string>& words, const Variables& variables, Streams streams) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  return mistake(streams, why_not_started(words[0], error), exit_code_of_exec(error));
}

// A card has a scheduler of its own, in a folder of its own below the user's. Only that one is made
// at once: whoever connects to a folder that was named does not look whose it is, but nobody else
// can put one there. The card's comes with the first scheduler, so that a card without any leaves
// nothing behind.
Result<std::string> run_directory_of(const std::string& card, const Surroundings& around) {
  const std::string above = private_directory(around);
  if (const auto made = make_private(above, around.user); !made) return made.error();
  std::string own = fmt::format("{}/softgpu-{}", above, card);
  if (const auto safe = check_private(own, around.user); !safe) return safe.error();
  return own;
}

int run(const Arguments& arguments, Streams streams) {
  auto variables = variables_of(arguments);
  if (!variables) return mistake(streams, variables.error().message);
  const auto config = settings_with(*variables);
  if (!config) return mistake(streams, config.error().message);
  if (arguments.has("print")) return print(*config, streams);
  if (arguments.positionals().empty()) {
    return mistake(streams, "CMD is missing (see nvshare softgpu --help)");
  }
  if (const Surroundings around = surroundings(); !around.chosen) {
    const auto own = run_directory_of(config->card, around);
    if (!own) return mistake(streams, own.error().message, kFailed);
    (*variables)[wire::kRunDirectoryVariable] = *own;
  }
  const auto folder = library_folder();
  if (!folder) return mistake(streams, folder.error().message, kFailed);
  const char* path = std::getenv("LD_LIBRARY_PATH");
  (*variables)["LD_LIBRARY_PATH"] =
      path != nullptr && *path != 0 ? fmt::format("{}:{}", *folder, path) : *folder;
  add_own_folder_to_path(*variables);
  return become(arguments.positionals(), *variables, streams);
}

// The settings as the help shows them.
std::string settings_help() {
  std::size_t width = 0;
  for (const softgpu::Setting& one : softgpu::settings()) width = std::max(width, one.key.size());
  std::string text =
      "settings, for --set, the environment (NVSHARE_SOFTGPU_MEMORY) and the file:\n";
  const softgpu::Config defaults;
  for (const softgpu::Setting& one : softgpu::settings()) {
    const std::string value = one.value.get(defaults);
    text += fmt::format("  {:<{}}  {} ({}{}{})\n", one.key, width, one.help, one.range,
                        value.empty() ? "" : "; default ", value);
  }
  return text +
         "\nThe command line counts before the environment, and that before the file. What\n"
         "describes the card counts for the program that opens it first.\n\n"
         "examples:\n"
         "  nvshare softgpu --memory 16Gi -- ./my-program\n"
         "  nvshare softgpu --set fail_allocation=3 -- ./my-program\n"
         "  nvshare softgpu -- softgpu-smi";
}

}  // namespace

Command softgpu_command() {
  static const std::string more = settings_help();  // the spec only looks at it
  CommandSpec spec;
  spec.name = "softgpu";
  spec.summary = "Run a program on a simulated GPU";
  spec.positionals = {{"CMD", "the program, with its arguments", false}};
  spec.options = {
      {"memory", 'm', "SIZE", "memory of each device, such as 16Gi"},
      {"count", 'n', "N", "how many devices there are"},
      {"card", 0, "NAME", "the card; programs that name the same share it"},
      {"config", 'c', "FILE", "a TOML file of settings"},
      {"set", 's', "KEY=VALUE", "any setting of those below; may be given several times"},
      {"print", 'p', "", "show the settings in force instead of running anything"},
  };
  spec.more = more;
  spec.takes_program = true;
  return {spec, run};
}

}  // namespace nvshare::cli
