#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "cli/commands/doctor.h"
#include "cli/run/captured_child.h"
#include "cli/run/environment.h"
#include "cli/run/installed.h"
#include "cli/run/private_scheduler.h"
#include "cli/run/tenant_link.h"
#include "cli/show/answers.h"
#include "cli/talk/control_client.h"
#include "nvml/loader.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

constexpr auto kVersionWithin = 5s;
constexpr auto kProbeWithin = 20s;
constexpr auto kSeenWithin = 3s;
constexpr const char* kTrySoftware = "install it, or try nvshare softgpu -- nvshare doctor";

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

class Examination {
 public:
  std::vector<Finding> all() {
    const bool complete = look_at_parts();
    if (auto limit = own_limit_finding(std::getenv("NVSHARE_GPU_MEMORY_LIMIT"))) {
      findings_.push_back(std::move(*limit));
    }
    const bool driver = look_at_driver();
    if (complete && driver) look_at_scheduler();
    return std::move(findings_);
  }

 private:
  void good(std::string what) { findings_.push_back({Level::Good, std::move(what), ""}); }
  void warn(std::string what, std::string advice) {
    findings_.push_back({Level::Warning, std::move(what), std::move(advice)});
  }
  void problem(std::string what, std::string advice) {
    findings_.push_back({Level::Problem, std::move(what), std::move(advice)});
  }

  bool look_at_parts() {
    good(fmt::format("nvshare {}", NVSHARE_VERSION));
    const auto scheduler = scheduler_program();
    if (scheduler) {
      look_at_version(*scheduler);
    } else {
      problem("nvshare-scheduler", scheduler.error().message);
    }
    const auto library = preload_library();
    if (library) {
      library_ = *library;
      good(fmt::format("libnvshare.so is {}", *library));
    } else {
      problem("libnvshare.so", library.error().message);
    }
    return scheduler && library;
  }

  // "nvshare-scheduler 0.1.0"
  void look_at_version(const std::string& scheduler) {
    auto child = CapturedChild::start({scheduler, "--version"}, own_environment());
    const auto line = child ? child->read_line(kVersionWithin) : child.error();
    if (!line) {
      problem(fmt::format("{} --version", scheduler), line.error().message);
    } else if (*line != "nvshare-scheduler " NVSHARE_VERSION) {
      warn(fmt::format("{} is '{}'", scheduler, *line), "install one version of all parts");
    } else {
      good(fmt::format("{} is {}", *line, scheduler));
    }
  }

  bool look_at_driver() {
    const auto nvml = nvml::Loader::open("libnvidia-ml.so.1");
    if (!nvml) {
      warn("NVML (libnvidia-ml.so.1) was not found", "utilisation and foreign users stay unknown");
    } else {
      look_at_devices(**nvml);
    }
    if (driver_is_there()) return true;
    problem("no CUDA driver (libcuda.so.1) was found", kTrySoftware);
    return false;
  }

  void look_at_devices(const nvml::Loader& nvml) {
    if (const auto result = nvml.nvmlInit_v2(); result != nvml::NVML_SUCCESS) {
      warn(fmt::format("NVML does not start: {}", nvml.nvmlErrorString(result)),
           "see whether nvidia-smi works");
      return;
    }
    char version[96] = "?";
    nvml.nvmlSystemGetDriverVersion(version, sizeof version);
    unsigned count = 0;
    nvml.nvmlDeviceGetCount_v2(&count);
    std::string names;
    for (unsigned i = 0; i < count; ++i) {
      nvml::nvmlDevice_t device = nullptr;
      char name[96] = "?";
      nvml.nvmlDeviceGetHandleByIndex_v2(i, &device);
      if (device != nullptr) nvml.nvmlDeviceGetName(device, name, sizeof name);
      names += fmt::format("{}{}", i == 0 ? ": " : ", ", name);
    }
    nvml.nvmlShutdown();
    good(fmt::format("driver {}, {} device{}{}", version, count, count == 1 ? "" : "s", names));
  }

  void look_at_scheduler() {
    const auto directory = find_run_directory(surroundings());
    if (!directory) return problem("run directory", directory.error().message);
    if (directory->silent == directory->path) {
      return problem(fmt::format("the scheduler in {} does not answer", directory->path),
                     "start it again");
    }
    if (!directory->silent.empty()) {
      warn("the system's scheduler does not answer", "start it: systemctl start nvshare-scheduler");
    }
    auto connection = connect_or_start(*directory);
    if (!connection) return problem("no scheduler", in_one_line(connection.error().message));
    auto control = ControlClient::connect(*directory);
    if (!control) {
      good(fmt::format("a scheduler answers in {}", directory->path));
      warn("its control socket", control.error().message);
    } else if (auto status = ask_status(*control); !status) {
      problem(fmt::format("the scheduler in {}", directory->path), status.error().message);
    } else {
      describe(status->scheduler, directory->path);
      findings_.push_back(host_memory_finding(*status));
      look_at_foreign(*status);
    }
    look_at_attachment(*directory, connection->get(), control ? &*control : nullptr);
  }

  static Result<Status> ask_status(ControlClient& control) {
    const auto reply = control.ask(status_request());
    if (!reply) return reply.error();
    if (!reply->accepted) return Error{reply->error};
    return read_status(reply->json);
  }

  void describe(const SchedulerInfo& scheduler, const std::string& path) {
    good(fmt::format("{} scheduler {} in {} (pid {}), policy {}",
                     scheduler.is_private ? "private" : "system", scheduler.version, path,
                     scheduler.pid, scheduler.policy));
    if (scheduler.version != NVSHARE_VERSION) {
      warn(fmt::format("the scheduler that runs is of version {}", scheduler.version),
           "start it again");
    }
    if (!scheduler.scheduling) {
      warn("scheduling is off: no limit of time holds", "nvshare config scheduling=on");
    }
  }

  void look_at_foreign(const Status& status) {
    for (const ForeignInfo& one : status.foreign) {
      warn(fmt::format("{} (pid {}) uses GPU {} outside nvshare", one.program, one.pid, one.gpu),
           "start it with nvshare run");
    }
  }

  // Whether a program that is started as `run` starts it really takes part.
  void look_at_attachment(const RunDirectory& directory, int connection, ControlClient* control) {
    const std::string name = fmt::format("doctor-{}", ::getpid());
    const auto joined = begin_run(connection, name, LimitWish{});
    if (!joined) return problem("a program cannot take part", joined.error().message);
    if (!joined->accepted) return problem("a program may not take part", joined->refusal);
    auto child = CapturedChild::start({"/proc/self/exe", "doctor-probe"},
                                      sharing_environment(library_, directory.path));
    if (!child) return problem("a program cannot be started", child.error().message);
    const auto line = child->read_line(kProbeWithin);
    const auto probe = line ? read_probe(*line) : line.error();
    if (!probe) return problem("a program on the GPU", probe.error().message);
    if (!describe(*probe) || control == nullptr) return;
    if (is_seen(*control, child->pid())) {
      good("a program that nvshare run starts is seen by the scheduler");
    } else {
      problem("a program on the GPU is not seen by the scheduler",
              "see its log with NVSHARE_LOG=debug");
    }
  }

  bool describe(const Probe& probe) {
    if (probe.library_version.empty()) {
      problem("libnvshare.so is not loaded into programs", "is it built for this machine?");
      return false;
    }
    if (probe.library_version != NVSHARE_VERSION) {
      warn(fmt::format("libnvshare.so is of version {}", probe.library_version),
           "install one version of all parts");
    }
    if (!probe.failed.empty()) {
      problem(fmt::format("{} failed with {} in a program", probe.failed, probe.error),
              "see whether it works without nvshare");
      return false;
    }
    good(fmt::format("CUDA {}.{} works under nvshare, {} device{}", probe.driver_version / 1000,
                     probe.driver_version % 1000 / 10, probe.devices,
                     probe.devices == 1 ? "" : "s"));
    return true;
  }

  static bool is_seen(ControlClient& control, pid_t pid) {
    const auto deadline = std::chrono::steady_clock::now() + kSeenWithin;
    do {
      const auto status = ask_status(control);
      if (!status) return false;
      for (const TenantInfo& tenant : status->tenants) {
        for (const ProcessInfo& one : tenant.processes) {
          if (one.pid == pid) return true;
        }
      }
      ::poll(nullptr, 0, 50);
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
  }

  std::vector<Finding> findings_;
  std::string library_;
};

}  // namespace

std::vector<Finding> examine() {
  return Examination().all();
}

}  // namespace nvshare::cli
