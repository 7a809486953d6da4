#include "cli/run/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>

#include "nvml/loader.h"

namespace nvshare::cli {
namespace {

constexpr std::string_view kUuidBegins = "GPU-";
constexpr std::string_view kByBus = "PCI_BUS_ID";  // CUDA then counts as NVML does

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> entries;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    entries.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return entries;
}

// All of the text, as a whole number that is not negative.
std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc{} || read.ptr != end || number < 0) return std::nullopt;
  return number;
}

// UUIDs are written in small letters.
std::string lowered(std::string_view entry) {
  std::string text(entry);
  for (std::size_t i = kUuidBegins.size(); i < text.size(); ++i) {
    if (text[i] >= 'A' && text[i] <= 'Z') text[i] = static_cast<char>(text[i] - 'A' + 'a');
  }
  return text;
}

bool is_uuid_or_its_beginning(std::string_view entry) {
  return entry.starts_with(kUuidBegins) && entry.size() > kUuidBegins.size() &&
         lowered(entry).find_first_not_of("0123456789abcdef-", kUuidBegins.size()) == entry.npos;
}

// The numbers of GPUs that can be used: "only 0", "0 and 1", "0 to 7", "0, 2 and 3".
std::string numbers(const MachineGpus& machine) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    if (machine.gpus[i]) all.push_back(i);
  }
  if (all.size() == 1) return fmt::format("only {}", all[0]);
  if (all.size() == machine.gpus.size() && all.size() > 2)
    return fmt::format("0 to {}", all.back());
  const std::size_t last = all.back();
  all.pop_back();
  return fmt::format("{} and {}", fmt::join(all, ", "), last);
}

Result<Uuid> by_number(int number, const MachineGpus& machine) {
  const auto at = static_cast<std::size_t>(number);
  if (at >= machine.gpus.size()) {
    return Error{fmt::format("there is no GPU {}: this machine has {}", number, numbers(machine))};
  }
  if (machine.gpus[at]) return *machine.gpus[at];
  return Error{
      fmt::format("GPU {} has failed, or may not be used: nvidia-smi -i {} says which", at, at)};
}

Result<Uuid> by_uuid(std::string_view entry, const MachineGpus& machine) {
  const std::string wanted = lowered(entry);
  const std::vector<Uuid> all = reachable(machine);
  const auto matches = [&](const Uuid& uuid) { return to_text(uuid).starts_with(wanted); };
  const auto found = std::ranges::count_if(all, matches);
  if (found == 1) return *std::ranges::find_if(all, matches);
  if (found > 1) {
    return Error{fmt::format("the UUIDs of {} GPUs begin with {}: give more of it", found, entry)};
  }
  return Error{fmt::format("there is no GPU {}: nvidia-smi -L lists those of this machine", entry)};
}

// The GPU has this number in CUDA, too, where CUDA counts by bus. CUDA leaves out GPUs that cannot
// be used, and counts MIG devices.
bool counts_alike(const MachineGpus& machine, std::size_t number) {
  if (machine.mig || number >= machine.gpus.size()) return false;
  const std::span up_to(machine.gpus.data(), number + 1);
  return std::ranges::all_of(up_to, [](const auto& gpu) { return gpu.has_value(); });
}

class Nvml {
 public:
  explicit Nvml(const nvml::Loader& nvml) : nvml_(nvml), result_(nvml_.nvmlInit_v2()) {}
  ~Nvml() {
    if (result_ == nvml::NVML_SUCCESS) nvml_.nvmlShutdown();
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Result<MachineGpus> gpus() const {
    if (result_ != nvml::NVML_SUCCESS) {
      return Error{fmt::format("NVML: {}", nvml_.nvmlErrorString(result_))};
    }
    unsigned count = 0;
    nvml_.nvmlDeviceGetCount_v2(&count);
    MachineGpus all;
    for (unsigned i = 0; i < count; ++i) {
      all.gpus.push_back(gpu(i));
      all.mig = all.mig || is_divided(i);
    }
    if (reachable(all).empty()) return Error{"NVML knows no GPU that can be used"};
    return all;
  }

 private:
  std::optional<Uuid> gpu(unsigned number) const {
    nvml::nvmlDevice_t device = nullptr;
    char text[96] = {};
    if (nvml_.nvmlDeviceGetHandleByIndex_v2(number, &device) != nvml::NVML_SUCCESS ||
        nvml_.nvmlDeviceGetUUID(device, text, sizeof text) != nvml::NVML_SUCCESS) {
      return std::nullopt;
    }
    return parse_uuid(text);
  }
  bool is_divided(unsigned number) const {
    nvml::nvmlDevice_t device = nullptr;
    unsigned now = 0;
    unsigned later = 0;
    return nvml_.nvmlDeviceGetHandleByIndex_v2(number, &device) == nvml::NVML_SUCCESS &&
           nvml_.nvmlDeviceGetMigMode(device, &now, &later) == nvml::NVML_SUCCESS && now != 0;
  }

  const nvml::Loader& nvml_;
  nvml::nvmlReturn_t result_;
};

}  // namespace

Result<GpuWish> parse_gpu_wish(std::string_view text) {
  GpuWish wish;
  if (text == "auto") return wish;
  if (text == "all") {
    wish.all = true;
    return wish;
  }
  if (text.ends_with('x')) {
    const auto count = number_in(text.substr(0, text.size() - 1));
    if (count && *count >= 1 && *count <= kMostGpus) {
      wish.wanted = *count;
      wish.counted = true;
      return wish;
    }
  }
  for (const std::string_view entry : split(text)) {
    if (!number_in(entry) && !is_uuid_or_its_beginning(entry)) {
      return Error{fmt::format(
          "'{}' is not auto, all, 2x (for any two), a number, a UUID (GPU-...) or a list of those",
          text)};
    }
    wish.entries.emplace_back(entry);
  }
  if (wish.entries.size() > kMostGpus) {
    return Error{fmt::format("a run has at most {} GPUs", kMostGpus)};
  }
  return wish;
}

Result<MachineGpus> machine_gpus() {
  const auto library = nvml::Loader::open("libnvidia-ml.so.1");
  if (!library) return library.error();
  return Nvml(**library).gpus();
}

std::vector<Uuid> reachable(const MachineGpus& machine) {
  std::vector<Uuid> all;
  for (const auto& gpu : machine.gpus) {
    if (gpu) all.push_back(*gpu);
  }
  return all;
}

Result<std::vector<Uuid>> find_gpus(const GpuWish& wish, const MachineGpus& machine) {
  std::vector<Uuid> chosen;
  if (static_cast<std::size_t>(wish.wanted) > reachable(machine).size()) {
    return Error{fmt::format("there are no {} GPUs: this machine has {}: {}", wish.wanted,
                             reachable(machine).size(), numbers(machine))};
  }
  for (const std::string& entry : wish.entries) {
    const auto number = number_in(entry);
    const auto gpu = number ? by_number(*number, machine) : by_uuid(entry, machine);
    if (!gpu) return gpu.error();
    if (std::ranges::find(chosen, *gpu) != chosen.end()) {
      return Error{fmt::format("GPU {} is named twice", entry)};
    }
    chosen.push_back(*gpu);
  }
  return chosen;
}

Result<MachineGpus> only_visible(MachineGpus machine, int wanted, const char* devices,
                                 const char* order) {
  if (devices == nullptr) return machine;
  const bool by_bus = order != nullptr && std::string_view(order) == kByBus;
  std::vector<Uuid> seen;
  for (const std::string_view entry : split(devices)) {
    const auto number = number_in(entry);
    if (!number && !is_uuid_or_its_beginning(entry)) break;  // as CUDA does
    if (number && !(by_bus && counts_alike(machine, static_cast<std::size_t>(*number)))) {
      return Error{
          fmt::format("the numbers in {}={} need not be those of nvidia-smi: set {}={}, "
                      "or name UUIDs",
                      kVisibleDevices, devices, kDeviceOrder, kByBus)};
    }
    const auto gpu = number ? by_number(*number, machine) : by_uuid(entry, machine);
    if (!gpu) break;
    seen.push_back(*gpu);
  }
  if (seen.size() < static_cast<std::size_t>(wanted)) {
    return Error{fmt::format("{} wanted, and {}={} leaves {}", wanted, kVisibleDevices, devices,
                             seen.size())};
  }
  for (auto& gpu : machine.gpus) {
    if (gpu && std::ranges::find(seen, *gpu) == seen.end()) gpu.reset();
  }
  return machine;
}

// Numbers, because vLLM and other programs read the variable as numbers of NVML. UUIDs serve where
// a number would be another GPU. A UUID in --gpu becomes a number, too, because the number names
// the GPU as surely.
std::vector<Variable> visible_devices(const std::vector<Uuid>& gpus, const MachineGpus& machine) {
  std::string uuids;
  std::string numbers;
  bool by_number = true;
  for (const Uuid& gpu : gpus) {
    const auto at = std::ranges::find(machine.gpus, gpu) - machine.gpus.begin();
    by_number = by_number && counts_alike(machine, static_cast<std::size_t>(at));
    numbers += fmt::format("{}{}", numbers.empty() ? "" : ",", at);
    uuids += (uuids.empty() ? "" : ",") + to_text(gpu);
  }
  if (gpus.empty()) return {};
  if (!by_number) return {{kVisibleDevices, uuids}};
  return {{kVisibleDevices, numbers}, {kDeviceOrder, std::string(kByBus)}};
}

}  // namespace nvshare::cli
