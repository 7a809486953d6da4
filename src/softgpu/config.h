#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace nvshare::softgpu {

// Everything that can be set, with its default. What describes the card counts for the process
// that makes it (the first); the rest, faults among it, for each process by itself.
struct Config {
  // The card.
  std::string card = "";  // empty: one for each user
  std::int64_t count = 1;
  Bytes memory = gib(80);
  std::string name = "nvshare Software GPU";
  Duration slice = 2ms;
  Duration switch_cost = 50us;
  Bytes link = gib(50);  // per second and direction

  // This process.
  Bytes pinned = gib(50);           // per second, from and to pinned host memory
  Bytes pageable = gib(10);         // per second, from and to other host memory
  Bytes bandwidth = gib(2000);      // per second, copies and memsets within the device
  Duration kernel_time = 2us;       // what a kernel takes beside what it declares or moves
  Bytes context_memory = Bytes{0};  // taken by each context for itself
  Bytes module_memory = Bytes{0};   // taken by each module when one of its kernels is first used
  std::string trace = "";           // file that every call is written to
  std::int64_t fastest = 0;         // device that CUDA counts first, unless it counts by PCI bus

  // Faults.
  std::int64_t fail_allocation = 0;  // the n-th allocation fails; 0: none
  std::int64_t fail_copy = 0;
  std::int64_t hang_kernel = 0;  // the n-th kernel never ends
  std::int64_t lose_device = 0;  // the device is gone from the n-th piece of work on
  std::int64_t slow_link = 1;    // copies of this process take so many times as long
  std::int64_t hang_nvml = 0;    // NVML never answers the n-th question how busy a device is
  bool nvml_unavailable = false;
};

// How a setting gets its value from text and gives it back. What get() answers, set() takes, and
// nothing is lost on the way.
struct Access {
  std::function<Result<void>(Config&, std::string_view)> set;
  std::function<std::string(const Config&)> get;
};

// One setting: how it is named in the environment and in a file, what it may be, and where it goes.
struct Setting {
  std::string_view key;  // in a file; NVSHARE_SOFTGPU_ and the same in capitals in the environment
  std::string_view range;  // what is accepted, for people
  std::string_view help;
  Access value;
};

// The one table of settings; docs/softgpu.md shows the same.
const std::vector<Setting>& settings();

// The setting of that key; null when there is none.
const Setting* find_setting(std::string_view key);

// The environment's name of a setting: "fail_copy" is NVSHARE_SOFTGPU_FAIL_COPY.
std::string environment_name(std::string_view key);

using Environment = std::function<const char*(const std::string&)>;

// Defaults, then the TOML file NVSHARE_SOFTGPU_CONFIG names, then the environment. All that is
// wrong is reported in one error. An NVSHARE_SOFTGPU_ variable that is no setting is not noticed;
// an unknown key of the file is an error.
Result<Config> load_config(const Environment& environment);

// Settings from the text of a TOML file; `origin` is named in errors.
Result<Config> parse_config(std::string_view toml, const std::string& origin, Config base = {});

}  // namespace nvshare::softgpu
