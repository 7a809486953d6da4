#include "daemon/declared.h"

#include <algorithm>

#include "daemon/tenant_names.h"

namespace nvshare::daemon {
namespace {

void put_over(Declaration& below, const Declaration& above) {
  if (above.cores) below.cores = above.cores;
  if (above.memory) below.memory = above.memory;
  if (above.priority) below.priority = above.priority;
}

// Of two groups the tighter limit holds, for each limit by itself.
template <typename T>
void tighten(std::optional<T>& limit, const std::optional<T>& other) {
  if (other) limit = limit ? std::min(*limit, *other) : *other;
}

void tighten(Declaration& limits, const Declaration& other) {
  tighten(limits.cores, other.cores);
  tighten(limits.priority, other.priority);
  if (!other.memory) return;
  // 0 is no limit, and so the loosest.
  const bool other_is_tighter =
      !limits.memory || limits.memory->count == 0 ||
      (other.memory->count > 0 && other.memory->count < limits.memory->count);
  if (other_is_tighter) limits.memory = other.memory;
}

void apply(DeclaredLimits& result, Source source, const Declaration& says) {
  if (says.cores) {
    result.limits.core_percent = *says.cores;
    result.from.cores = source;
  }
  if (says.memory) {
    result.limits.memory = says.memory->count > 0 ? says.memory : std::nullopt;
    result.from.memory = source;
  }
  if (says.priority) {
    result.limits.priority = *says.priority;
    result.from.priority = source;
  }
}

}  // namespace

std::string_view name_of(Source source) {
  switch (source) {
    case Source::Default:
      return "default";
    case Source::Run:
      return "run";
    case Source::Variable:
      return "variable";
    case Source::Group:
      return "group";
    case Source::File:
      return "file";
    case Source::Annotation:
      return "annotation";
    case Source::Limit:
      return "limit";
  }
  return "?";
}

Declaration declare_all(const core::Limits& limits) {
  return {limits.core_percent, limits.memory.value_or(Bytes{}), limits.priority};
}

// A name of a run may be another user's later. Users and containers have names of their own.
Declared::Key Declared::key_of(const TenantName& name) {
  return {name.kind, name.name, name.kind == TenantKind::Run ? name.uid : 0};
}

const Declared::Entry* Declared::find(const TenantName& name) const {
  const auto at = entries_.find(key_of(name));
  return at == entries_.end() ? nullptr : &at->second;
}

Declared::Entry& Declared::entry_of(const TenantName& name, WallTime now) {
  Entry& entry = entries_[key_of(name)];
  entry.is = name;
  entry.seen = now;
  return entry;
}

void Declared::drop_if_empty(const Key& key) {
  const auto at = entries_.find(key);
  if (at != entries_.end() && at->second.says.empty() && !at->second.paused) entries_.erase(at);
}

// Of a user whose groups could not be asked for, the tightest of all groups hold: without them an
// answer that fails would lift a limit.
Declaration Declared::from_groups(std::uint32_t uid) const {
  auto known = groups_.find(uid);
  if (known == groups_.end()) known = groups_.emplace(uid, groups_of_(uid)).first;
  const Groups& groups = known->second;
  Declaration tightest;
  for (const auto& [group, table] : tables_.groups) {
    const bool in_it = !groups || std::ranges::find(*groups, group) != groups->end();
    if (in_it) tighten(tightest, table.limits);
  }
  return tightest;
}

std::map<Source, Declaration> Declared::from_tables(const TenantName& name) const {
  std::map<Source, Declaration> says;
  if (name.kind == TenantKind::Run) return says;
  if (name.kind != TenantKind::User) {
    const auto own = tables_.named.find(name.name);
    if (own != tables_.named.end()) says[Source::File] = own->second.limits;
    return says;
  }
  const auto own = tables_.users.find(name.uid);
  if (own != tables_.users.end()) says[Source::File] = own->second.limits;
  if (tables_.groups.empty() || !groups_of_) return says;
  if (const Declaration tightest = from_groups(name.uid); !tightest.empty()) {
    says[Source::Group] = tightest;
  }
  return says;
}

std::vector<TenantName> Declared::all() const {
  std::map<std::string, TenantName> found;
  for (const auto& [uid, table] : tables_.users) {
    const TenantName user = user_tenant(uid);
    found.emplace(user.name, user);
  }
  for (const auto& [name, table] : tables_.named) found.emplace(name, *tenant_called(name));
  for (const auto& [key, entry] : entries_) {
    if (entry.is.kind != TenantKind::Run && !entry.says.empty())
      found.emplace(entry.is.name, entry.is);
  }
  std::vector<TenantName> names;
  for (auto& [name, is] : found) names.push_back(std::move(is));
  return names;
}

DeclaredLimits Declared::limits_of(const TenantName& name, const core::Limits& defaults,
                                   const Declaration& asked) const {
  std::map<Source, Declaration> says = from_tables(name);
  if (!asked.empty()) says[Source::Run] = asked;
  if (const Entry* entry = find(name)) says.insert(entry->says.begin(), entry->says.end());
  DeclaredLimits result{defaults, {}};
  for (const auto& [source, limits] : says) apply(result, source, limits);  // in rising order
  return result;
}

void Declared::declare(const TenantName& name, Source source, const Declaration& limits,
                       WallTime now) {
  if (limits.empty()) return;
  put_over(entry_of(name, now).says[source], limits);
}

bool Declared::withdraw(const TenantName& name, Source source) {
  const auto at = entries_.find(key_of(name));
  if (at == entries_.end() || at->second.says.erase(source) == 0) return false;
  drop_if_empty(at->first);
  return true;
}

void Declared::set_paused(const TenantName& name, bool paused, WallTime now) {
  entry_of(name, now).paused = paused;
  drop_if_empty(key_of(name));
}

bool Declared::paused(const TenantName& name) const {
  const Entry* entry = find(name);
  return entry != nullptr && entry->paused;
}

bool Declared::limited_live(const TenantName& name) const {
  const Entry* entry = find(name);
  return entry != nullptr && entry->says.count(Source::Limit) > 0;
}

bool Declared::saw(const TenantName& name, WallTime now) {
  const auto at = entries_.find(key_of(name));
  if (at == entries_.end() || now - at->second.seen < kSeenEvery) return false;
  at->second.seen = now;
  return true;
}

void Declared::forget(const TenantName& name) {
  entries_.erase(key_of(name));
}

std::vector<TenantName> Declared::expire(WallTime now) {
  std::vector<TenantName> gone;
  for (auto at = entries_.begin(); at != entries_.end();) {
    const Entry& entry = (at++)->second;
    const bool lasts = entry.is.kind != TenantKind::Container && entry.is.kind != TenantKind::Pod;
    if (lasts || now - entry.seen < kLasts) continue;
    gone.push_back(entry.is);
    forget(gone.back());
  }
  return gone;
}

std::vector<LiveTenant> Declared::live() const {
  std::vector<LiveTenant> all;
  for (const auto& [key, entry] : entries_) {
    const auto limits = entry.says.find(Source::Limit);
    if (limits == entry.says.end() && !entry.paused) continue;
    all.push_back({entry.is, limits == entry.says.end() ? Declaration{} : limits->second,
                   entry.paused, entry.seen});
  }
  return all;
}

void Declared::restore(const LiveTenant& tenant) {
  Entry& entry = entry_of(tenant.is, tenant.seen);
  entry.paused = tenant.paused;
  if (!tenant.limits.empty()) entry.says[Source::Limit] = tenant.limits;
  drop_if_empty(key_of(tenant.is));
}

}  // namespace nvshare::daemon
