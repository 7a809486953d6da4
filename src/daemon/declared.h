#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/event.h"
#include "daemon/broker/records.h"
#include "daemon/settings_tables.h"

// Which limits a tenant has, and which source said so. No clock and no IO.
namespace nvshare::daemon {

// Where a limit comes from. A later source goes before an earlier one.
enum class Source { Default, Run, Variable, Group, File, Annotation, Limit };
// "default", "run", "variable", "group", "file", "annotation", "limit".
std::string_view name_of(Source source);

// The source of each limit.
struct LimitSources {
  Source cores = Source::Default;
  Source memory = Source::Default;
  Source priority = Source::Default;

  friend bool operator==(const LimitSources&, const LimitSources&) = default;
};

struct DeclaredLimits {
  core::Limits limits;
  LimitSources from;

  // A source other than the defaults says a limit.
  bool declared() const { return from != LimitSources{}; }
  friend bool operator==(const DeclaredLimits&, const DeclaredLimits&) = default;
};

// A declaration that says all three limits.
Declaration declare_all(const core::Limits& limits);

// Seconds since 1970: the steady clock does not outlast a restart of the machine.
using WallTime = std::int64_t;

// The changes of people that belong to one tenant.
struct LiveTenant {
  TenantName is;
  Declaration limits;
  bool paused = false;
  WallTime seen = 0;  // when the tenant was changed, or was there

  friend bool operator==(const LiveTenant& a, const LiveTenant& b) {
    return a.is.kind == b.is.kind && a.is.name == b.is.name && a.is.uid == b.is.uid &&
           a.limits == b.limits && a.paused == b.paused && a.seen == b.seen;
  }
};

class Declared {
 public:
  // The numbers of the groups that a user is in. Nothing when that could not be asked.
  using Groups = std::optional<std::vector<std::uint32_t>>;
  using GroupsOf = std::function<Groups(std::uint32_t uid)>;

  Declared() = default;
  Declared(LimitTables tables, GroupsOf groups_of)
      : tables_(std::move(tables)), groups_of_(std::move(groups_of)) {}

  // Each limit from the highest source that says it. `asked` came with the tenant (a run).
  DeclaredLimits limits_of(const TenantName& name, const core::Limits& defaults,
                           const Declaration& asked = {}) const;

  // The tenant begins: the groups of a user are asked for once more. At other times the last answer
  // counts, because an answer may come from the network.
  void begins(const TenantName& name) { groups_.erase(name.uid); }

  // A source says something about a tenant, which need not be there yet. `limits` goes over what
  // the source has said before, value by value. Only Annotation and Limit are told this way.
  void declare(const TenantName& name, Source source, const Declaration& limits, WallTime now);
  // The source says nothing any more. False: it had said nothing.
  bool withdraw(const TenantName& name, Source source);

  // All that have a table of their own, or were limited, and are no runs; whether they are there or
  // not.
  std::vector<TenantName> all() const;

  void set_paused(const TenantName& name, bool paused, WallTime now);
  bool paused(const TenantName& name) const;
  // Whether somebody has limited the tenant with `nvshare limit`.
  bool limited_live(const TenantName& name) const;

  // The tenant is there now. Answers whether to write its time: at most once in kSeenEvery.
  bool saw(const TenantName& name, WallTime now);
  // Forgets all that was told of the tenant; not the tables.
  void forget(const TenantName& name);
  // Forgets pods and containers that were not seen for kLasts, and answers with their names.
  std::vector<TenantName> expire(WallTime now);

  // The changes of people, for the state file.
  std::vector<LiveTenant> live() const;
  void restore(const LiveTenant& tenant);

  // Seconds for which a change outlasts the container.
  static constexpr WallTime kPromised = 24 * 3600;
  // How exactly it is known when a tenant was there. A larger number writes the state less often.
  static constexpr WallTime kSeenEvery = 3600;
  // A container is looked for when it was not seen for kSeenEvery, and at most once in that time.
  // So it may have been there until twice that after it was seen.
  static constexpr WallTime kLasts = kPromised + 2 * kSeenEvery;

 private:
  using Key = std::tuple<TenantKind, std::string, std::uint32_t>;
  struct Entry {
    TenantName is;
    std::map<Source, Declaration> says;
    bool paused = false;
    WallTime seen = 0;
  };
  static Key key_of(const TenantName& name);
  const Entry* find(const TenantName& name) const;
  Entry& entry_of(const TenantName& name, WallTime now);
  void drop_if_empty(const Key& key);
  std::map<Source, Declaration> from_tables(const TenantName& name) const;
  Declaration from_groups(std::uint32_t uid) const;

  LimitTables tables_;
  GroupsOf groups_of_;
  mutable std::map<std::uint32_t, Groups> groups_;  // as they were answered
  std::map<Key, Entry> entries_;
};

}  // namespace nvshare::daemon
