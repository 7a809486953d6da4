// Runs: how they begin and end, with the scheduler and without it.

#include <fmt/format.h>

#include <algorithm>

#include "daemon/broker/tree.h"
#include "world.h"

namespace nvshare::properties {
namespace {

constexpr int kDeepest = 4;
constexpr std::uint32_t kNames = 12;  // of runs: names come back

}  // namespace

void World::begin_run() {
  const Tenant& around = some_tenant();
  int depth = 0;
  each_level(around.name, [&](const Tenant&) { ++depth; });
  const int starter = starter_in(around);
  if (depth >= kDeepest || starter == 0) return;
  if (static_cast<int>(runs_.size()) >= ProcessTree::kMostKeepers) return;
  Tenant run;
  run.name = fmt::format("run{}", dice_.below(kNames));
  if (tenants_.contains(run.name)) return;
  run.uid = around.uid;
  run.parent = around.name;
  run.asked.core_percent = dice_.pick({100, 50, 30, 20, 80, 10, 60});
  if (dice_.one_in(2)) run.asked.memory = gib(dice_.between(1, 6));
  run.keeper = tree_.fork_keeper(starter);
  if (starter == 1) tree_.move(run.keeper, fmt::format("/home-{}", run.uid));
  if (!dice_.one_in(3)) run.group = tree_.at(run.keeper).group + "/nvshare-run-" + run.name;
  note(fmt::format("begin {} in {} cores {} memory {}{}", run.name, run.parent,
                   run.asked.core_percent, run.asked.memory ? to_text(*run.asked.memory) : "-",
                   run.group.empty() ? "" : " group"));
  if (!open_run(run)) return tree_.end(run.keeper);
  runs_.push_back(run.name);
  tenants_[run.name] = run;
}

// As the server does it for RunBegin. False: the run asks for too much.
bool World::open_run(Tenant& run) {
  daemon::Broker& broker = life_->broker();
  const Time now = life_->t.now;
  const auto in = life_->runs.run_of(run.keeper, broker.tenants());
  must(static_cast<bool>(in), "the run of a keeper");
  const core::TenantId parent = *in ? **in : id_of(tenants_.at(fmt::format("user-{}", run.uid)));
  const std::string& around = broker.tenants().at(parent).is.name;
  must(around == run.parent, fmt::format("{} is in {}", run.name, around));
  if (!daemon::check_part(broker.tenants(), parent, run.asked)) return false;
  const daemon::TenantName name{daemon::TenantKind::Run, run.name, run.uid};
  const auto begun = broker.begin_run(name, run.asked, now, wire::Backend::Default, false, parent);
  must(static_cast<bool>(begun), run.name + " begins");
  life_->kept.forget_run(name);
  if (!run.group.empty()) tree_.move(run.keeper, run.group);
  life_->runs.begin(*begun, tree_.key_of(run.keeper), run.group);
  daemon::KeptRun kept{run.name, run.uid, run.keeper, tree_.at(run.keeper).started};
  kept.parent = run.parent;
  kept.cgroup = run.group;
  kept.limits = run.asked;
  life_->kept.run_begins(kept);
  run.then = clock_;
  run.used_then = run.used;
  forget_stretches(run);
  return true;
}

void World::end_keeper() {
  Tenant* run = some_run();
  if (run == nullptr || run->keeper == 0) return;
  // Without a group the scheduler would not know the run of a program that is not back yet.
  const bool some_are_away = std::any_of(programs_.begin(), programs_.end(), [&](const auto& p) {
    return p.tenant == run->name && !p.client;
  });
  if (run->group.empty() && some_are_away) return end_all_in(run->name);
  note("the keeper of " + run->name + " ends");
  tree_.end(run->keeper);
  run->keeper = 0;
  const bool occupied = !run->group.empty() && tree_.is_populated(run->group);
  life_->broker().end_run(id_of(*run), life_->t.now, occupied);
  forget_ended_runs();
}

// `nvshare run` with the name of a run whose keeper is gone.
void World::new_keeper() {
  Tenant* run = some_run();
  if (run == nullptr || run->keeper != 0 || run->group.empty()) return;
  note("a new keeper for " + run->name);
  daemon::Broker& broker = life_->broker();
  const daemon::TenantRecord known = *life_->find(run->name);
  run->keeper = tree_.fork_keeper(1);
  tree_.move(run->keeper, run->group);
  const auto begun = broker.begin_run(known.is, known.limits, life_->t.now, wire::Backend::Default,
                                      false, known.parent);
  must(begun && *begun == known.id, "the run is taken over");
  life_->runs.begin(known.id, tree_.key_of(run->keeper), run->group);
  daemon::KeptRun kept{run->name, run->uid, run->keeper, tree_.at(run->keeper).started};
  kept.parent = run->parent;
  kept.cgroup = run->group;
  kept.limits = known.limits;
  life_->kept.run_begins(kept);
}

void World::end_whole_run() {
  if (const Tenant* run = some_run()) end_all_in(run->name);
}

void World::end_all_in(const std::string& run) {
  note("all of " + run + " ends");
  for (auto at = programs_.begin(); at != programs_.end();) {
    const auto program = at++;
    if (is_below(program->tenant, run)) remove(program);
  }
  for (const std::string& name : runs_) {
    Tenant& one = tenants_.at(name);
    if (one.keeper == 0 || !is_below(name, run)) continue;
    tree_.end(one.keeper);
    one.keeper = 0;
    if (life_->find(name) == nullptr) continue;  // a new scheduler does not know of it yet
    life_->broker().end_run(id_of(one), life_->t.now);
  }
  forget_ended_runs();
}

// The last first: a run stays while it has parts.
void World::forget_ended_runs() {
  for (std::size_t i = runs_.size(); i-- > 0;) {
    const Tenant& run = tenants_.at(runs_[i]);
    const bool has_programs = std::any_of(programs_.begin(), programs_.end(),
                                          [&](const auto& p) { return p.tenant == run.name; });
    const bool has_parts = std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& one) {
      return one.second.parent == run.name;
    });
    if (run.keeper != 0 || has_programs || has_parts) continue;
    if (const auto* known = life_->find(run.name)) {
      const core::TenantId id = known->id;
      life_->broker().set_vacant(id, life_->t.now);
      life_->runs.forget(id);
    }
    check_time(tenants_.at(runs_[i]));
    tenants_.erase(run.name);
    runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// --- the scheduler -----------------------------------------------------------------------------

// kill -9, and another one is started. Most programs are back soon, in any order; some never.
void World::restart() {
  note("restart");
  for (auto& [name, tenant] : tenants_) {
    check_time(tenant);
    forget_stretches(tenant);  // allowances and debts are forgotten as well
  }
  for (Program& program : programs_) {
    program.client.reset();
    program.turn.reset();
    if (dice_.one_in(10)) program.lost = true;
  }
  std::set<std::string> groups;
  for (const auto& [name, tenant] : tenants_) {
    if (!tenant.group.empty()) groups.insert(tenant.group);
  }
  tree_.draw(groups);
  life_.reset();
  life_ = std::make_unique<Life>(tree_, written_);
  next_sample_ = clock_ + 1s;
  forget_unwritten();
  check_tenants();
  std::vector<Program*> back;
  for (Program& program : programs_) {
    if (!program.lost && !dice_.one_in(4)) back.push_back(&program);
  }
  while (!back.empty()) {
    const auto at = back.begin() + dice_.below(static_cast<std::uint32_t>(back.size()));
    come_back(**at);
    back.erase(at);
    if (dice_.one_in(4)) run_for(20ms);
  }
}

// A run that began a moment ago is not in the file. Its keeper asks for it again. Without a keeper
// its programs and parts belong to the tenant around it; so do those of a run that had neither a
// keeper nor a group.
void World::forget_unwritten() {
  const std::vector<std::string> runs = runs_;
  for (const std::string& name : runs) {
    const auto at = tenants_.find(name);
    if (at == tenants_.end() ||
        life_->kept.asked_by({daemon::TenantKind::Run, name, at->second.uid}))
      continue;
    Tenant& run = at->second;
    must((run.live.empty() && !run.paused) || (run.keeper == 0 && run.group.empty()),
         "what a person changed is in the file: " + name);
    if (run.keeper != 0) {
      note(name + " begins again");
      if (!open_run(run)) end_all_in(name);
      continue;
    }
    note(name + " is forgotten");
    for (Program& program : programs_) {
      if (program.tenant == name) program.tenant = run.parent;
    }
    for (auto& [other, tenant] : tenants_) {
      if (tenant.parent == name) tenant.parent = run.parent;
    }
    std::erase(runs_, name);
    tenants_.erase(at);
  }
}

}  // namespace nvshare::properties
