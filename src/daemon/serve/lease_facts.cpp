#include "daemon/serve/lease_facts.h"

#include <nlohmann/json.hpp>

namespace nvshare::daemon {

using json = nlohmann::ordered_json;

json json_of(const std::optional<LeaseFacts::Gpu>& gpu) {
  if (!gpu) return nullptr;
  const core::ArbiterGpuView& view = gpu->view;
  return {{"state", core::name_of(view.state)},
          {"usage", view.usage ? json(*view.usage) : json(nullptr)},
          {"usage_age", view.age ? json(view.age->count()) : json(nullptr)},
          {"high_water", view.marks.high},
          {"low_water", view.marks.low},
          {"active", view.active},
          {"slots", gpu->slots},
          {"waiting", view.waiting}};
}

json json_of(const LeaseFacts::Leases& leases) {
  json all = json::array();
  for (const LeaseFacts::Lease& one : leases.first) {
    all.push_back({{"lease", one.name},
                   {"tenant", one.tenant},
                   {"class", one.view.task_class},
                   {"gpu", one.view.gpu.value},
                   {"active", one.view.active && !one.view.preparing},
                   {"pid", one.pid == 0 ? json(nullptr) : json(one.pid)},
                   {"text", one.text}});
  }
  return all;
}

}  // namespace nvshare::daemon
