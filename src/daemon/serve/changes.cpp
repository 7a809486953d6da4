#include "daemon/serve/changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/run_name.h"
#include "daemon/tenant_names.h"

namespace nvshare::daemon {
namespace {

core::Limits with(core::Limits limits, const Declaration& change) {
  if (change.cores) limits.core_percent = *change.cores;
  if (change.memory) limits.memory = change.memory->count > 0 ? change.memory : std::nullopt;
  if (change.priority) limits.priority = *change.priority;
  return limits;
}

}  // namespace

// --- names -------------------------------------------------------------------------------------

std::optional<TenantName> Changes::user_named(const std::string& name) const {
  if (is_schedulers_own(name)) {
    const auto called = tenant_called(name);
    return called && called->kind == TenantKind::User ? called : std::nullopt;
  }
  const auto uid = find_user_ ? find_user_(name) : std::nullopt;
  return uid ? std::optional(user_tenant(*uid)) : std::nullopt;
}

const TenantRecord* Changes::find(const std::string& name) const {
  if (const TenantRecord* found = broker_.find_tenant(name)) return found;
  if (const std::size_t slash = name.rfind('/'); slash != name.npos) {
    const TenantRecord* part = broker_.find_tenant(name.substr(slash + 1));
    const bool is_it = part != nullptr && part->parent && find(name.substr(0, slash)) != nullptr &&
                       find(name.substr(0, slash))->id == *part->parent;
    return is_it ? part : nullptr;
  }
  // A long id, as `docker ps --no-trunc` shows it, is of a tenant with a shorter name.
  if (const auto called = nameable(name); called && *called) {
    return broker_.find_tenant((**called).name);
  }
  const auto user = user_named(name);
  return user ? broker_.find_tenant(user->name) : nullptr;
}

// A run may be called as its user likes: a command that is meant for a user must not end there.
Result<void> Changes::check_unique(const std::string& name) const {
  const TenantRecord* found = broker_.find_tenant(name);
  if (found == nullptr || found->is.kind != TenantKind::Run) return {};
  const auto user = user_named(name);
  if (!user) return {};
  const std::string around = found->parent ? broker_.tenants().at(*found->parent).is.name : "";
  return Error{fmt::format("'{}' is a user and a run: say {} for the user, {}/{} for the run", name,
                           user->name, around, name)};
}

Result<std::optional<TenantName>> Changes::nameable(const std::string& name) const {
  const auto called = tenant_called(name);
  if (!called) return std::optional<TenantName>{};
  Result<TenantName> named = *called;
  if (called->kind == TenantKind::Container) named = container_named(name);
  if (called->kind == TenantKind::Pod) named = pod_named(name);
  if (!named) return Error{fmt::format("'{}' {}", name, named.error().message)};
  const auto all = kept_.declared();
  const bool declared = std::ranges::any_of(all, [&](const auto& one) { return one.name == name; });
  if (called->kind == TenantKind::Cgroup && !declared) {
    return Error{fmt::format("'{}' has no table in [cgroups] of scheduler.toml", name)};
  }
  return std::optional(*named);
}

Result<TenantId> Changes::make_user(const std::string& name, Time now) {
  const auto user = user_named(name);
  if (!user) return Error{fmt::format("there is no user '{}'", name)};
  return broker_.tenant_for(*user, kept_.limits_of(*user, settings_.default_limits()).limits, now);
}

std::optional<DeclaredLimits> Changes::declared_for(const std::string& name) const {
  auto tenant = user_named(name);
  if (!tenant) tenant = tenant_called(name);
  if (!tenant) return std::nullopt;
  const DeclaredLimits limits = kept_.limits_of(*tenant, settings_.default_limits());
  return limits.declared() ? std::optional(limits) : std::nullopt;
}

std::vector<std::string> Changes::declared_absent() const {
  std::vector<std::string> names;
  for (const TenantName& one : kept_.declared()) {
    if (broker_.find_tenant(one.name) == nullptr) names.push_back(one.name);
  }
  return names;
}

// --- limits ------------------------------------------------------------------------------------

Result<bool> Changes::set_limits(TenantId id, const Declaration& limits, Time now) {
  const TenantRecord& tenant = broker_.tenants().at(id);
  if (const auto set = broker_.set_limits(id, with(tenant.limits, limits), now); !set) {
    return set.error();
  }
  kept_.set_limits(tenant.is, limits);
  broker_.keep(id, kept_.limited_live(tenant.is));
  return kept_.write_now();
}

bool Changes::declare_limits(const TenantName& name, const Declaration& limits) {
  kept_.set_limits(name, limits);
  return kept_.write_now();
}

bool Changes::withdraw_limits(const TenantName& name) {
  kept_.reset_limits(name);
  return kept_.write_now();
}

Result<bool> Changes::reset_limits(TenantId id, Time now) {
  const TenantRecord& tenant = broker_.tenants().at(id);
  kept_.reset_limits(tenant.is);
  if (const auto applied = apply_limits(tenant, now); !applied) return applied.error();
  return kept_.write_now();
}

Result<void> Changes::apply_limits(const TenantRecord& tenant, Time now) {
  const core::Limits limits = limits_of(tenant).limits;
  if (limits != tenant.limits) {
    // What a tenant came with stays, also where the tenant around it was lowered since.
    const auto set = broker_.set_limits(tenant.id, limits, now, false);
    if (!set) return set.error();
  }
  broker_.keep(tenant.id, kept_.limited_live(tenant.is));
  return {};
}

// A run keeps the limits with which it began.
void Changes::apply_all_limits(Time now) {
  for (const auto& [id, tenant] : broker_.tenants()) {
    if (tenant.is.kind == TenantKind::Run) continue;
    const auto applied = apply_limits(tenant, now);
    if (!applied) {
      log_.warn("limits_not_changed",
                {{"tenant", tenant.is.name}, {"reason", applied.error().message}});
    }
  }
}

Result<bool> Changes::set_paused(TenantId id, bool paused, Time now) {
  if (const auto set = broker_.set_paused(id, paused, now); !set) return set.error();
  kept_.set_paused(broker_.tenants().at(id).is, paused);
  return kept_.write_now();
}

// --- settings ----------------------------------------------------------------------------------

Result<void> Changes::apply_settings(const SettingTexts& texts, Time now) {
  for (const auto& [name, text] : texts) {
    const Setting* setting = find_setting(name);
    if (setting == nullptr || setting->changeable) continue;
    return Error{fmt::format("{} cannot change while the scheduler runs", name)};
  }
  Settings changed = settings_;
  if (const auto good = daemon::set_settings(changed, texts); !good) return good;
  if (changed.core != settings_.core) {
    if (const auto taken = broker_.set_config(changed.core, now); !taken) return taken;
  }
  const bool defaults_change = changed.default_limits() != settings_.default_limits();
  settings_ = changed;
  broker_.set_backend(changed.memory_backend);
  for (const auto& [name, text] : texts) {
    log_.info("setting_changed", {{"name", name}, {"value", text}});
  }
  log_.set_level(changed.log_level);
  if (defaults_change) apply_all_limits(now);
  if (on_settings_) on_settings_();
  return {};
}

Result<bool> Changes::set_settings(const SettingTexts& texts, Time now) {
  if (const auto applied = apply_settings(texts, now); !applied) return applied.error();
  for (const auto& [name, text] : texts) {
    kept_.set_setting(name, text_of(settings_, name), text_of(original_, name));
  }
  return kept_.write_now();
}

Result<bool> Changes::set_scheduling(bool on, Time now) {
  if (const auto set = broker_.set_scheduling(on, now); !set) return set.error();
  kept_.set_scheduling(on);
  return kept_.write_now();
}

// --- restarts ----------------------------------------------------------------------------------

// One setting can bound another. Where they do not fit all at once, those that fit are taken.
void Changes::restore_settings(Time now) {
  auto left = kept_.settings();
  if (apply_settings({left.begin(), left.end()}, now)) return;
  std::map<std::string, std::string> reasons;
  const auto fits = [&](const auto& kept) {
    const auto applied = apply_settings({kept}, now);
    if (!applied) reasons[kept.first] = applied.error().message;
    return static_cast<bool>(applied);
  };
  while (std::erase_if(left, fits) > 0) {
  }
  if (left.empty()) return;
  std::string refused;
  for (const auto& [name, value] : left) {
    refused +=
        fmt::format("{}{}={} ({})", refused.empty() ? "" : ", ", name, value, reasons.at(name));
  }
  log_.warn("settings_not_restored", {{"settings", refused}, {"effect", "they stay in the file"}});
}

void Changes::restore(Time now) {
  restore_settings(now);
  if (!kept_.scheduling()) (void)broker_.set_scheduling(false, now);
  for (const LiveTenant& one : kept_.live()) {
    // A pod or container is a part of what its first process tells.
    if (one.is.kind != TenantKind::User) continue;
    const auto limits = kept_.limits_of(one.is, settings_.default_limits()).limits;
    const auto id = broker_.tenant_for(one.is, limits, now);
    if (!id) {
      log_.warn("tenant_not_restored", {{"tenant", one.is.name}, {"reason", id.error().message}});
      continue;
    }
    broker_.keep(*id, kept_.limited_live(one.is));
    if (one.paused) (void)broker_.set_paused(*id, true, now);
  }
}

void Changes::look(Time now, const Kept::Boxes& boxes) {
  const auto find = [this](const TenantName& name) -> const TenantRecord* {
    const TenantRecord* found = broker_.find_tenant(name.name);
    if (found == nullptr || found->is.kind != name.kind) return nullptr;
    return name.kind != TenantKind::Run || found->is.uid == name.uid ? found : nullptr;
  };
  const auto busy = [&](const TenantName& name) {
    const TenantRecord* found = find(name);
    return found != nullptr && (!found->clients.empty() || !found->parts.empty());
  };
  const auto gone =
      kept_.look([&](const TenantName& name) { return find(name) != nullptr; }, busy, boxes);
  for (const TenantName& name : gone) {
    const TenantRecord* tenant = find(name);
    if (tenant == nullptr) continue;
    (void)broker_.set_paused(tenant->id, false, now);
    (void)apply_limits(*tenant, now);
  }
}

}  // namespace nvshare::daemon
