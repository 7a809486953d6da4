// The tree, and what must hold in it.

#include "world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "daemon/broker/tree.h"
#include "holds.h"

namespace nvshare::properties {
namespace {

constexpr std::uint32_t kFirstUser = 1000;
constexpr int kUsers = 3;
constexpr Duration kQuiet = 20s;
// Points that a part may be off its due over kQuiet: 0.4 s. A tenant that has just joined is up to
// two of the longest turns behind, once.
constexpr double kPoints = 2;

}  // namespace

World::World(Dice dice) : dice_(dice), life_(std::make_unique<Life>(tree_, written_)) {
  for (std::uint32_t uid = kFirstUser; uid < kFirstUser + kUsers; ++uid) {
    Tenant user;
    user.name = fmt::format("user-{}", uid);
    user.uid = uid;
    tenants_[user.name] = user;
  }
}

// --- the tree ----------------------------------------------------------------------------------

void World::each_level(const std::string& name,
                       const std::function<void(const Tenant&)>& call) const {
  for (std::string at = name; !at.empty(); at = tenants_.at(at).parent) call(tenants_.at(at));
}

bool World::is_below(const std::string& name, const std::string& tenant) const {
  bool found = false;
  each_level(name, [&](const Tenant& level) { found |= level.name == tenant; });
  return found;
}

bool World::is_paused(const std::string& name) const {
  bool paused = false;
  each_level(name, [&](const Tenant& level) { paused |= level.paused; });
  return paused;
}

core::Limits World::limits_of(const Tenant& tenant) {
  core::Limits limits = tenant.asked;
  if (tenant.live.cores) limits.core_percent = *tenant.live.cores;
  if (tenant.live.memory) limits.memory = *tenant.live.memory;
  if (limits.memory == Bytes{}) limits.memory.reset();
  return limits;
}

core::Limits World::tightest(const std::string& name) const {
  core::Limits tightest;
  each_level(name, [&](const Tenant& level) {
    const core::Limits limits = limits_of(level);
    tightest.core_percent = std::min(tightest.core_percent, limits.core_percent);
    if (!limits.memory) return;
    tightest.memory = std::min(tightest.memory.value_or(*limits.memory), *limits.memory);
  });
  return tightest;
}

// What programs of the tenant and its parts have that are known to the scheduler. "": all.
Bytes World::memory_of(const std::string& name) const {
  Bytes sum{};
  for (const Program& program : programs_) {
    if (program.client && (name.empty() || is_below(program.tenant, name))) sum += program.has;
  }
  return sum;
}

// --- what must hold ----------------------------------------------------------------------------

void World::check() {
  check_tenants();
  check_programs();
  hear();
  check_grants();
}

void World::check_tenants() {
  for (const auto& [name, tenant] : tenants_) {
    const daemon::TenantRecord* known = life_->find(name);
    if (known == nullptr) {
      must(!tenant.is_run() && tenant.live.empty() && !tenant.paused, name + " is not known");
      continue;
    }
    std::string parent;
    if (known->parent) parent = life_->broker().tenants().at(*known->parent).is.name;
    must(parent == tenant.parent, fmt::format("{} is a part of '{}'", name, parent));
    must(known->limits == limits_of(tenant),
         fmt::format("{} has cores {} memory {}", name, known->limits.core_percent,
                     known->limits.memory ? to_text(*known->limits.memory) : "-"));
    must(known->paused == tenant.paused, name + " is paused, or is not");
  }
  for (const auto& [id, known] : life_->broker().tenants()) {
    must(tenants_.contains(known.is.name), known.is.name + " is known and is gone");
  }
  for (const auto& [name, value] : settings_) {
    must(daemon::text_of(life_->settings, name) == value, name + " is not as it was set");
  }
}

void World::check_programs() {
  for (const auto& [id, known] : life_->broker().tenants()) {
    must(life_->broker().allocated_by(known, core::GpuId{0}) == memory_of(known.is.name),
         known.is.name + ": the books are wrong");
  }
  for (const Program& program : programs_) {
    if (!program.client) continue;
    const core::Limits limits = tightest(program.tenant);
    const auto& page = life_->t.page(*program.client);
    must(page.core_limit == static_cast<std::uint64_t>(limits.core_percent) &&
             page.memory_limit == static_cast<std::uint64_t>(limits.memory.value_or(Bytes{}).count),
         fmt::format("{} sees other limits than hold", program.pid));
    must(life_->broker().core().view(*program.client)->allocated == program.has,
         fmt::format("{} counts for another amount than it has", program.pid));
  }
  must(life_->t.outbox.disconnected.empty(), "a program is sent away");
}

// While the GPU is free, a program with work waits only because a limit of it or of a level above
// is used up. A paused program runs to the end of a kernel and no further.
void World::check_grants() {
  const Program* waits = nullptr;
  bool held = false;
  for (const Program& program : programs_) {
    if (!program.client) continue;
    const bool paused = is_paused(program.tenant);
    held |= program.turn.has_value();
    must(!program.turn || program.works, "a grant for one without work");
    must(!program.turn || program.turn->dropped || !paused, "runs though it is paused");
    if (program.works && !program.turn && !paused &&
        life_->broker().core().reason(*program.client, life_->t.now)->why != core::Why::OverLimit) {
      waits = &program;
    }
  }
  must(waits == nullptr || held,
       fmt::format(
           "{} waits for a GPU that is free: {}", waits == nullptr ? 0 : waits->pid,
           waits == nullptr ? "" : *life_->broker().core().explain(*waits->client, life_->t.now)));
}

// docs/policies.md: two kernels, the longest turn, and what can be saved up.
void World::check_time(Tenant& tenant) {
  const int limit = limits_of(tenant).core_percent;
  const Duration used = tenant.used - std::exchange(tenant.used_then, tenant.used);
  const Duration passed = clock_ - std::exchange(tenant.then, clock_);
  constexpr Duration kSlack = 350ms;
  if (limit == core::kNoCoreLimit) return forget_stretches(tenant);
  // The lowest point begins the worst stretch that ends now.
  tenant.ahead += used - passed * limit / 100;
  tenant.least_ahead = std::min(tenant.least_ahead, tenant.ahead);
  must(tenant.ahead - tenant.least_ahead <= kSlack,
       fmt::format("{} had {} too much in some stretch of time under a limit of {}", tenant.name,
                   to_text(tenant.ahead - tenant.least_ahead), limit));
}

// What was used before counts no longer.
void World::forget_stretches(Tenant& tenant) {
  tenant.ahead = tenant.least_ahead = {};
}

Tree World::tree_with_work() const {
  Tree tree;
  for (const auto& [name, tenant] : tenants_) {
    tree[name].limit = limits_of(tenant).core_percent;
    tree[tenant.parent].parts.push_back(name);
  }
  for (const Program& program : programs_) {
    if (program.client && program.works && !is_paused(program.tenant)) {
      tree[program.tenant].works = true;
    }
  }
  return tree;
}

void World::quiet() {
  for (Program& program : programs_) {
    if (!program.client && !program.lost) come_back(program);
  }
  check();
  for (auto& [name, tenant] : tenants_) check_time(tenant);
  run_for(2s);  // what was saved up is used up
  for (Program& program : programs_) program.used = {};
  run_for(kQuiet);
  const Due due = dues_of(tree_with_work());
  std::map<std::string, Duration> used;
  for (const Program& program : programs_) used[program.tenant] += program.used;
  for (const auto& [name, tenant] : tenants_) {
    const double has = 100 * static_cast<double>(used[name].count()) /
                       static_cast<double>(Duration(kQuiet).count());
    const auto at = due.find(name);
    const double wanted = at == due.end() ? 0 : at->second;
    must(std::abs(has - wanted) <= kPoints,
         fmt::format("programs of {} have {:.2f} % and their due is {:.2f} %", name, has, wanted));
  }
  for (auto& [name, tenant] : tenants_) check_time(tenant);
  check();
}

void World::note(const std::string& what) {
  story_ += fmt::format("{:8.3f} {}\n", static_cast<double>(clock_.count()) / 1e9, what);
}

void World::fail(const std::string& what) const {
  RC_FAIL(fmt::format("{}\n{}{}", what, story_, state_text()));
  std::abort();
}

std::string World::state_text() const {
  std::string text;
  for (const auto& [name, tenant] : tenants_) {
    const core::Limits limits = limits_of(tenant);
    text +=
        fmt::format("{} in '{}' cores {} memory {}{}\n", name, tenant.parent, limits.core_percent,
                    limits.memory ? to_text(*limits.memory) : "-", tenant.paused ? " paused" : "");
  }
  for (const Program& program : programs_) {
    text += fmt::format("{} in {} has {}{}{}, kernel {}: {}\n", program.pid, program.tenant,
                        to_text(program.has), program.client ? "" : " away",
                        program.works ? "" : " without work", to_text(program.kernel),
                        to_text(program.used));
  }
  return text;
}

}  // namespace nvshare::properties
