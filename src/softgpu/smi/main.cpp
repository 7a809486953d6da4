#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "softgpu/smi/options.h"
#include "softgpu/smi/query.h"
#include "softgpu/smi/render.h"

// softgpu-smi shows the software GPU, also on a machine that has a real one: it asks the NVML
// library that was built with it, and only without that the one the loader finds.
namespace nvshare::smi {
namespace {

constexpr int kBadUsage = 2;
constexpr const char* kLibrary = "libnvidia-ml.so.1";

int fail(int status, const std::string& message) {
  std::fprintf(stderr, "softgpu-smi: %s\n", message.c_str());
  return status;
}

bool names(const std::string& wanted, const DeviceLine& device) {
  return wanted == std::to_string(device.index) || wanted == device.uuid || wanted == device.bus_id;
}

std::string text_of(const Snapshot& snapshot, const Options& options, bool first) {
  const bool header = options.header && first;
  switch (options.show) {
    case Show::kList:
      return list(snapshot);
    case Show::kJson:
      return json(snapshot);
    case Show::kDevices:
      return device_csv(snapshot, options.fields, header, options.units);
    case Show::kProcesses:
      return process_csv(snapshot, options.fields, header, options.units);
    case Show::kTable:
    case Show::kHelp:
      break;
  }
  return table(snapshot, NVSHARE_VERSION) + (options.loop ? "\n" : "");
}

// One look; the exit status that it asks for.
int show_once(const nvml::Loader& nvml, const Options& options, bool first) {
  Snapshot snapshot;
  if (const auto error = take_snapshot(nvml, snapshot)) {
    return fail(static_cast<int>(error->code), error->message);
  }
  if (!options.device.empty()) {
    std::erase_if(snapshot.devices,
                  [&](const DeviceLine& device) { return !names(options.device, device); });
    if (snapshot.devices.empty()) {
      return fail(static_cast<int>(nvml::NVML_ERROR_NOT_FOUND),
                  "no device '" + options.device + "'");
    }
  }
  const std::string text = text_of(snapshot, options, first);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return 1;  // whoever reads has gone
  }
  const bool lost =
      std::any_of(snapshot.devices.begin(), snapshot.devices.end(),
                  [](const DeviceLine& device) { return device.trouble.has_value(); });
  return lost ? static_cast<int>(nvml::NVML_ERROR_GPU_IS_LOST) : 0;
}

Result<std::unique_ptr<nvml::Loader>> open_library() {
  std::error_code failed;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (!failed) {
    auto beside = nvml::Loader::open(program.parent_path() / ".." / "lib" / "softgpu" / kLibrary);
    if (beside) return beside;
  }
  return nvml::Loader::open(kLibrary);
}

int run(const Options& options) {
  auto library = open_library();
  if (!library) {
    return fail(static_cast<int>(nvml::NVML_ERROR_LIBRARY_NOT_FOUND), library.error().message);
  }
  const nvml::Loader& nvml = **library;
  if (const auto result = nvml.nvmlInit_v2(); result != nvml::NVML_SUCCESS) {
    return fail(result == nvml::NVML_ERROR_UNKNOWN ? 255 : static_cast<int>(result),
                std::string("NVML: ") + nvml.nvmlErrorString(result));
  }
  int status = show_once(nvml, options, true);
  while (options.loop && status == 0) {
    std::this_thread::sleep_for(*options.loop);
    status = show_once(nvml, options, false);
  }
  nvml.nvmlShutdown();
  return status;
}

}  // namespace
}  // namespace nvshare::smi

int main(int argc, char** argv) {
  const auto options = nvshare::smi::parse_options({argv + 1, argv + argc});
  if (!options) return nvshare::smi::fail(nvshare::smi::kBadUsage, options.error().message);
  if (options->show == nvshare::smi::Show::kHelp) {
    std::fputs(nvshare::smi::help_text().c_str(), stdout);
    return 0;
  }
  return nvshare::smi::run(*options);
}
