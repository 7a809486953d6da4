#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "config/arbiter_keys.h"
#include "core/arbiter/arbiter.h"
#include "core/config.h"
#include "core/event.h"

namespace nvshare::sim {

enum class WorkloadKind {
  Saturating,  // always has work, in kernels of `kernel`
  Bursty,      // `burst` of GPU work, then `gap` of its own time, and again
  Phases,      // goes through `phases`, and starts over
  Silent,      // saturating, and does not answer a drop
  Idle,        // registered, holds its memory, never wants the GPU
};

struct Phase {
  WorkloadKind kind = WorkloadKind::Saturating;
  Duration lasts{};  // of the client's own time
};

struct Workload {
  WorkloadKind kind = WorkloadKind::Saturating;
  Duration kernel{};  // work in flight cannot be stopped before its kernel ends; 0 = at once
  Duration burst{};
  Duration gap{};
  // Instead of `gap`: a burst begins so often, counted from the arrival. A late one begins at once.
  std::optional<Duration> every{};
  std::vector<Phase> phases;
  std::optional<Duration> total;  // GPU time after which the client is finished and leaves
};

struct MemoryStep {
  Duration at{};  // from the client's arrival
  Bytes allocated;
};

struct LimitStep {
  Duration at{};  // from the beginning of the scenario
  core::Limits limits;
};

// A tenant without processes of its own. Clients and other tenants are parts of it.
struct TenantSpec {
  std::string name;
  core::Limits limits;
  std::optional<std::string> part_of{};  // a tenant before it in the list
  std::vector<LimitStep> changes{};      // by time
};

// What becomes of a request that is refused its lease.
enum class Refused {
  Skip,      // it is given up
  Retry,     // it asks again, when the arbiter said
  FallBack,  // it is done without the GPU
};

// Each burst is a request of its own, and needs a lease on the client's GPU first.
struct LeaseSpec {
  core::LeaseRequest asks;  // its lease and its GPU are given when it is played
  Refused refused = Refused::Skip;
};

// A tenant with one or more processes that all do the same.
struct ClientSpec {
  std::string name;
  core::Limits limits;
  std::optional<std::string> part_of{};  // a tenant
  int processes = 1;
  std::optional<int> gpu;  // none: placed by the core
  Duration arrives{};
  std::optional<Duration> leaves;
  std::vector<MemoryStep> memory;  // by time; may be empty
  std::vector<LimitStep> changes;  // by time
  Workload work;
  std::optional<LeaseSpec> lease{};
};

struct GpuSpec {
  Bytes memory = gib(16);
  int count = 1;  // this many alike
};

struct Scenario {
  std::string name;
  std::string about;
  Duration lasts = 2s;
  // Longer or shorter under some policies: where a policy's rounds are not the window's length, the
  // scenario can be watched for one of its rounds.
  std::map<core::ComputePolicy, Duration> lasts_under;
  Bytes link_per_second = gib(50);   // what moving memory really takes
  Duration hand_over{};              // from a grant until the process has work on the GPU
  std::optional<Bytes> host_memory;  // for what leaves GPUs; none: as much as is needed
  core::Config config;
  core::ArbiterConfig arbiter{};
  Duration usage_sample_interval = config::kFirstUsageInterval;
  std::vector<GpuSpec> gpus;
  std::vector<TenantSpec> tenants;
  std::vector<ClientSpec> clients;
};

}  // namespace nvshare::sim
