#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/arbiter/arbiter.h"

namespace nvshare::daemon {

// What people are told of leases beside programs. The control socket is for administrators alone,
// so that names of leases may be among it.
struct LeaseFacts {
  struct Gpu {
    core::ArbiterGpuView view;
    int slots = 0;
  };
  struct Lease {
    std::string name;
    std::string tenant;
    core::LeaseView view;
    int pid = 0;  // of the owner; 0: none
    std::string text;
  };
  struct Leases {
    std::vector<Lease> first;
    std::size_t total = 0;
  };
  using IsWanted = std::function<bool(const std::string& tenant)>;

  // Nothing where no lease was ever asked for.
  std::function<std::optional<Gpu>(core::GpuId)> gpu = [](core::GpuId) -> std::optional<Gpu> {
    return std::nullopt;
  };
  // Leases and requests of the wanted tenants: the first kMost, the active ones before the others.
  std::function<Leases(const IsWanted&)> leases = [](const IsWanted&) { return Leases(); };

  static constexpr std::size_t kMost = 64;
};

// As the control socket has them; null for no GPU.
nlohmann::ordered_json json_of(const std::optional<LeaseFacts::Gpu>& gpu);
nlohmann::ordered_json json_of(const LeaseFacts::Leases& leases);

}  // namespace nvshare::daemon
