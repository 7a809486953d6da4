#include "daemon/serve/runs.h"

#include <algorithm>

#include "daemon/serve/run_groups.h"

namespace nvshare::daemon {

void Runs::begin(TenantId run, const ProcessKey& keeper, const std::string& group) {
  groups_[run] = group;
  keepers_[keeper].insert(run);
}

void Runs::forget(TenantId run) {
  groups_.erase(run);
  for (auto& [keeper, runs] : keepers_) runs.erase(run);
  std::erase_if(keepers_, [](const auto& one) { return one.second.empty(); });
  std::erase_if(clients_, [&](const auto& one) { return one.second.run == run; });
}

void Runs::joined(TenantId run, const ProcessKey& client) {
  Client& known = clients_[client];
  known.run = run;
  ++known.gpus;
}

void Runs::left(const ProcessKey& client) {
  const auto at = clients_.find(client);
  if (at != clients_.end() && --at->second.gpus == 0) clients_.erase(at);
}

std::string Runs::group_of(TenantId run) const {
  const auto at = groups_.find(run);
  return at == groups_.end() ? "" : at->second;
}

std::optional<TenantId> Runs::run_of_group(std::string_view group,
                                           std::optional<TenantId> except) const {
  std::optional<TenantId> innermost;
  std::size_t longest = 0;
  for (const auto& [run, own] : groups_) {
    if (run == except || own.size() < longest || !is_inside(group, own)) continue;
    innermost = run;
    longest = own.size();
  }
  return innermost;
}

// Of the runs of one keeper the last begun is the innermost.
std::optional<TenantId> Runs::at(const ProcessKey& process, const Asked& asked) const {
  if (const auto keeper = keepers_.find(process); keeper != keepers_.end()) {
    const auto& runs = keeper->second;
    const auto last =
        std::find_if(runs.rbegin(), runs.rend(), [&](TenantId run) { return run != asked.except; });
    if (last != runs.rend()) return *last;
  }
  if (!asked.clients) return std::nullopt;
  const auto client = clients_.find(process);
  if (client == clients_.end() || client->second.run == asked.except) return std::nullopt;
  return client->second.run;
}

Result<std::optional<TenantId>> Runs::run_of(int pid, const TenantMap& tenants, Asked asked) const {
  if (groups_.empty()) return std::optional<TenantId>{};
  const auto in_group = run_of_group(processes_.group_of(pid).value_or(""), asked.except);
  const bool groups_tell_all = std::none_of(groups_.begin(), groups_.end(),
                                            [](const auto& one) { return one.second.empty(); });
  if (in_group && groups_tell_all) return in_group;
  const auto above =
      processes_.run_above(pid, [&](const ProcessKey& process) { return at(process, asked); });
  if (!above || !in_group) return above;
  return *above && is_below(tenants, **above, *in_group) ? *above : in_group;
}

}  // namespace nvshare::daemon
