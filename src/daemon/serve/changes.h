#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/kept.h"
#include "daemon/settings.h"

namespace nvshare::daemon {

// What people change: each change goes to the broker, and is kept for after a restart. All that is
// handed in outlives it.
class Changes {
 public:
  // `find_user` finds users by their names. The settings are as the file and the environment say.
  Changes(Broker& broker, Settings& settings, Kept& kept, Log& log, NameLookup::Find find_user = {})
      : broker_(broker),
        settings_(settings),
        original_(settings),
        kept_(kept),
        log_(log),
        find_user_(std::move(find_user)) {}

  // Called when settings have changed, for those that the broker does not know.
  void on_settings(std::function<void()> call) { on_settings_ = std::move(call); }

  // Puts in force what a scheduler before this one has kept. Before programs connect; runs come
  // with ProgramServer::restore_runs().
  void restore(Time now);
  // About once a second: forgets what is kept about tenants that are gone (Kept::look).
  void look(Time now, const Kept::Boxes& boxes);

  // The tenant of that name, where a user has two: "user-1000" and the user's own. A run has a
  // second one as well: "user-1000/train". Null: there is none now.
  const TenantRecord* find(const std::string& name) const;
  // An error where a run and a user are called so: the person must say which.
  Result<void> check_unique(const std::string& name) const;
  // The tenant of a user that need not have a process. An error when the name is no user's.
  Result<TenantId> make_user(const std::string& name, Time now);
  // A pod, container or cgroup that can be limited before its first process comes. Nothing for
  // every other name; an error for a text that is nearly such a name.
  Result<std::optional<TenantName>> nameable(const std::string& name) const;
  // The limits of a tenant that is there, and where they come from.
  DeclaredLimits limits_of(const TenantRecord& tenant) const {
    return kept_.limits_of(tenant.is, settings_.default_limits());
  }

  // The limits that a tenant will have that is no run and not there. Nothing where none is
  // declared.
  std::optional<DeclaredLimits> declared_for(const std::string& name) const;
  // The names of those with declared limits that are not there.
  std::vector<std::string> declared_absent() const;

  // Each answers whether the change is written, and so outlasts a restart.
  Result<bool> set_limits(TenantId tenant, const Declaration& limits, Time now);
  // The same for one that is not there: the limits hold from its first process on.
  bool declare_limits(const TenantName& name, const Declaration& limits);
  // From now on the next source below `nvshare limit` holds.
  Result<bool> reset_limits(TenantId tenant, Time now);
  bool withdraw_limits(const TenantName& name);
  Result<bool> set_paused(TenantId tenant, bool paused, Time now);
  Result<bool> set_setting(const Setting& setting, const std::string& text, Time now) {
    return set_settings({{setting.name, text}}, now);
  }
  // All of them or none.
  Result<bool> set_settings(const SettingTexts& texts, Time now);
  Result<bool> set_scheduling(bool on, Time now);

 private:
  std::optional<TenantName> user_named(const std::string& name) const;
  Result<void> apply_settings(const SettingTexts& texts, Time now);
  // Settings that do not fit stay kept: they may fit the next version, or the next file.
  void restore_settings(Time now);
  Result<void> apply_limits(const TenantRecord& tenant, Time now);
  void apply_all_limits(Time now);

  Broker& broker_;
  Settings& settings_;
  const Settings original_;
  Kept& kept_;
  Log& log_;
  NameLookup::Find find_user_;
  std::function<void()> on_settings_;
};

}  // namespace nvshare::daemon
