#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "daemon/broker/tree.h"
#include "daemon/serve/identity.h"

namespace nvshare::daemon {

// Runs, and which of them a process is in. Three things tell, and the innermost run counts:
// the run's cgroup; the run's keeper above the process; a client of the run above the process.
class Runs {
 public:
  explicit Runs(const Processes& processes) : processes_(processes) {}

  // The run has this keeper from now on. `group` is its cgroup; empty: it has none.
  void begin(TenantId run, const ProcessKey& keeper, const std::string& group);
  void forget(TenantId run);
  // A process is a client of the run, once for each GPU. Its children belong to the run as well.
  void joined(TenantId run, const ProcessKey& client);
  void left(const ProcessKey& client);

  struct Asked {
    bool clients = true;                  // clients of runs tell as well
    std::optional<TenantId> except = {};  // this run does not count
  };
  // The innermost run that the process is in. An error when that cannot be told. All runs are in
  // `tenants`.
  Result<std::optional<TenantId>> run_of(int pid, const TenantMap& tenants, Asked asked) const;
  Result<std::optional<TenantId>> run_of(int pid, const TenantMap& tenants) const {
    return run_of(pid, tenants, Asked{});
  }
  // The innermost run in whose cgroup `group` lies.
  std::optional<TenantId> run_of_group(std::string_view group,
                                       std::optional<TenantId> except = std::nullopt) const;
  // Its cgroup; empty: none.
  std::string group_of(TenantId run) const;
  // All there are, with their groups.
  const std::map<TenantId, std::string>& all() const { return groups_; }

 private:
  struct Client {
    TenantId run;
    int gpus = 0;
  };
  std::optional<TenantId> at(const ProcessKey& process, const Asked& asked) const;

  const Processes& processes_;
  std::map<TenantId, std::string> groups_;
  std::map<ProcessKey, std::set<TenantId>> keepers_;  // one process can begin a run in its own run
  std::map<ProcessKey, Client> clients_;
};

}  // namespace nvshare::daemon
