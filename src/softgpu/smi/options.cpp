#include "softgpu/smi/options.h"

#include <fmt/format.h>

#include <cmath>

#include "softgpu/smi/query.h"

namespace nvshare::smi {
namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  while (true) {
    const std::size_t comma = list.find(',', from);
    std::string part = list.substr(from, comma - from);
    const std::size_t first = part.find_first_not_of(' ');
    const std::size_t last = part.find_last_not_of(' ');
    parts.push_back(first == std::string::npos ? "" : part.substr(first, last - first + 1));
    if (comma == std::string::npos) return parts;
    from = comma + 1;
  }
}

// Walks the arguments; "--name=value" and "--name value" are the same.
class Parser {
 public:
  explicit Parser(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  Result<Options> parse() {
    while (at_ < arguments_.size()) {
      std::string name = arguments_[at_++];
      value_.reset();
      if (const std::size_t equals = name.find('=');
          name.rfind("--", 0) == 0 && equals != std::string::npos) {
        value_ = name.substr(equals + 1);
        name.resize(equals);
      }
      if (auto taken = take(name); !taken) return taken.error();
      if (value_) return Error{fmt::format("{} takes no value", name)};
    }
    const bool query = options_.show == Show::kDevices || options_.show == Show::kProcesses;
    if (query && !formatted_) return Error{"a query needs --format=csv"};
    if (!query && formatted_) return Error{"--format goes with a query"};
    return options_;
  }

 private:
  Result<void> take(const std::string& name) {
    if (name == "-h" || name == "--help") return show(Show::kHelp);
    if (name == "-L" || name == "--list-gpus") return show(Show::kList);
    if (name == "--json") return show(Show::kJson);
    if (name == "--query-gpu") return query(name, Show::kDevices);
    if (name == "--query-compute-apps") return query(name, Show::kProcesses);
    if (name == "--format") return format(name);
    if (name == "-i" || name == "--id") return id(name);
    if (name == "-l" || name == "--loop") return loop(name);
    return Error{fmt::format("unknown option '{}' (--help lists them)", name)};
  }

  Result<void> show(Show what) {
    if (options_.show != Show::kTable && options_.show != what) {
      return Error{"only one of -L, --json, --query-gpu and --query-compute-apps"};
    }
    options_.show = what;
    return {};
  }

  Result<std::string> value(const std::string& name) {
    if (!value_ && at_ < arguments_.size()) value_ = arguments_[at_++];
    if (!value_ || value_->empty()) return Error{fmt::format("{} needs a value", name)};
    std::string taken = std::move(*value_);
    value_.reset();
    return taken;
  }

  Result<void> query(const std::string& name, Show what) {
    auto list = value(name);
    if (!list) return list.error();
    options_.fields = split(*list);
    for (const std::string& field : options_.fields) {
      const bool known = what == Show::kDevices ? find_device_field(field) != nullptr
                                                : find_process_field(field) != nullptr;
      if (!known) return Error{fmt::format("'{}' is not a field of {}", field, name)};
    }
    return show(what);
  }

  Result<void> format(const std::string& name) {
    auto list = value(name);
    if (!list) return list.error();
    for (const std::string& part : split(*list)) {
      if (part == "csv") {
        formatted_ = true;
      } else if (part == "noheader") {
        options_.header = false;
      } else if (part == "nounits") {
        options_.units = false;
      } else {
        return Error{fmt::format("'{}' is not a format (csv, noheader, nounits)", part)};
      }
    }
    if (!formatted_) return Error{"--format needs csv"};
    return {};
  }

  Result<void> id(const std::string& name) {
    auto device = value(name);
    if (!device) return device.error();
    options_.device = *device;
    return {};
  }

  Result<void> loop(const std::string& name) {
    auto text = value(name);
    if (!text) return text.error();
    // Seconds, as whoever knows nvidia-smi writes them.
    auto duration = parse_duration(*text + "s");
    if (!duration || *duration <= 0s || *duration > 24h) {
      return Error{fmt::format("{}: '{}' is not a number of seconds", name, *text)};
    }
    options_.loop = *duration;
    return {};
  }

  const std::vector<std::string>& arguments_;
  std::size_t at_ = 0;
  std::optional<std::string> value_;
  bool formatted_ = false;
  Options options_;
};

}  // namespace

Result<Options> parse_options(const std::vector<std::string>& arguments) {
  return Parser(arguments).parse();
}

std::string help_text() {
  std::string text =
      "softgpu-smi: shows what NVML says of the software GPU\n"
      "\n"
      "  (nothing)                       the devices and who uses them\n"
      "  -L, --list-gpus                 one line for each device\n"
      "  --query-gpu=FIELD,...           devices as CSV; needs --format\n"
      "  --query-compute-apps=FIELD,...  processes as CSV; needs --format\n"
      "  --format=csv[,noheader][,nounits]\n"
      "  --json                          everything as JSON\n"
      "  -i, --id=INDEX|UUID|BUS         this device alone\n"
      "  -l, --loop=SECONDS              again and again\n"
      "  -h, --help                      this text\n"
      "\n"
      "Fields of --query-gpu:\n";
  for (const DeviceField& field : device_fields()) text += fmt::format("  {}\n", field.name);
  text += "Fields of --query-compute-apps:\n";
  for (const ProcessField& field : process_fields()) text += fmt::format("  {}\n", field.name);
  return text;
}

}  // namespace nvshare::smi
