// What happens in the world.

#include <fmt/format.h>

#include <algorithm>

#include "world.h"

namespace nvshare::properties {
namespace {

constexpr std::size_t kMostPrograms = 12;
constexpr Bytes kPiece = mib(256);
constexpr Bytes kMostInAll = gib(30);  // the GPU has room for it

}  // namespace

void World::step() {
  switch (dice_.below(28)) {
    case 0:
    case 1:
    case 2:
      begin_run();
      break;
    case 3:
    case 4:
      start_program();
      break;
    case 5:
    case 6:
      fork_program();
      break;
    case 7:
      end_program();
      break;
    case 8:
      end_keeper();
      break;
    case 9:
      new_keeper();
      break;
    case 10:
      if (dice_.one_in(2)) end_whole_run();
      break;
    case 11:
    case 12:
      change_limits();
      break;
    case 13:
      dice_.one_in(2) ? reset_limits() : change_setting();
      break;
    case 14:
      pause_or_resume();
      break;
    case 15:
    case 16:
    case 17:
      ask_memory();
      break;
    case 18:
      free_memory();
      break;
    case 19:
      restart();
      break;
    case 20:
      if (Program* away = some_program([](const auto& p) { return !p.client && !p.lost; })) {
        come_back(*away);
      }
      break;
    default:
      run_for(Duration{dice_.pick<Duration>({50ms, 5ms, 300ms, 1s})});
  }
  end_of_turn();
  check();
}

// --- which one ---------------------------------------------------------------------------------

World::Tenant* World::some_run() {
  if (runs_.empty()) return nullptr;
  return &tenants_.at(runs_[dice_.below(static_cast<std::uint32_t>(runs_.size()))]);
}

World::Tenant& World::some_tenant() {
  auto at = tenants_.begin();
  std::advance(at, dice_.below(static_cast<std::uint32_t>(tenants_.size())));
  return at->second;
}

World::Program* World::some_program(const std::function<bool(const Program&)>& which) {
  std::vector<Program*> found;
  for (Program& program : programs_) {
    if (which(program)) found.push_back(&program);
  }
  if (found.empty()) return nullptr;
  return found[dice_.below(static_cast<std::uint32_t>(found.size()))];
}

// A process in the tenant that can start others; 0: there is none.
int World::starter_in(const Tenant& tenant) {
  if (!tenant.is_run()) return 1;
  // Without a keeper and a group, children of clients alone are known to be in the run.
  const bool by_clients = tenant.keeper == 0 && tenant.group.empty();
  const Program* program = some_program([&](const auto& p) {
    return p.tenant == tenant.name && (p.client.has_value() || !by_clients);
  });
  if (program != nullptr && (tenant.keeper == 0 || dice_.one_in(2))) return program->pid;
  return tenant.keeper;
}

core::TenantId World::id_of(const Tenant& tenant) {
  if (const auto* known = life_->find(tenant.name)) return known->id;
  must(!tenant.is_run(), tenant.name + " is not known");
  return *life_->changes.make_user(tenant.name, life_->t.now);
}

// --- programs ----------------------------------------------------------------------------------

void World::add_program(int pid, const std::string& tenant) {
  Program program;
  program.pid = pid;
  program.tenant = tenant;
  program.kernel = dice_.pick<Duration>({1ms, 0ms, 100us, 5ms});
  program.works = !dice_.one_in(4);
  program.movable = !dice_.one_in(3);
  note(fmt::format("program {} in {}{}", pid, tenant, program.works ? "" : " without work"));
  programs_.push_back(program);
  join(programs_.back());
}

void World::start_program() {
  start_program_in(some_tenant().name);
}

void World::start_program_in(const std::string& name) {
  const Tenant& tenant = tenants_.at(name);
  const int starter = starter_in(tenant);
  if (programs_.size() >= kMostPrograms || starter == 0) return;
  const int pid = tree_.fork(starter);
  if (starter == 1) tree_.move(pid, fmt::format("/home-{}", tenant.uid));
  add_program(pid, tenant.name);
}

// The child is a client of its own, in the run of its parent.
void World::fork_program() {
  const Program* some = some_program([](const auto&) { return true; });
  if (programs_.size() >= kMostPrograms || some == nullptr) return;
  const Tenant& run = tenants_.at(some->tenant);
  if (run.is_run() && run.keeper == 0 && run.group.empty() && !some->client) return;
  note(fmt::format("{} forks", some->pid));
  add_program(tree_.fork(some->pid), run.name);
}

// As the server does it for Hello.
void World::join(Program& program) {
  daemon::Broker& broker = life_->broker();
  const Tenant& wanted = tenants_.at(program.tenant);
  const auto in = life_->runs.run_of(program.pid, broker.tenants());
  must(static_cast<bool>(in), "the run of a program");
  const core::TenantId tenant = *in ? **in : id_of(tenants_.at(fmt::format("user-{}", wanted.uid)));
  const std::string& name = broker.tenants().at(tenant).is.name;
  must(name == program.tenant, fmt::format("{} is in {}", program.pid, name));
  auto hello = daemon::TestBroker::hello();
  hello.allocated = hello.resident = static_cast<std::uint64_t>(program.has.count);
  hello.pinned = program.movable ? 0 : hello.allocated;
  program.client = life_->t.join(tenant, hello, {program.pid, wanted.uid});
  if (wanted.is_run()) life_->runs.joined(tenant, tree_.key_of(program.pid));
  if (program.works) life_->t.want(*program.client);
}

void World::come_back(Program& program) {
  note(fmt::format("{} comes back with {}", program.pid, to_text(program.has)));
  join(program);
}

void World::end_program() {
  const Program* program = some_program([](const auto&) { return true; });
  if (program == nullptr) return;
  note(fmt::format("{} ends", program->pid));
  remove(std::find_if(programs_.begin(), programs_.end(),
                      [&](const auto& one) { return &one == program; }));
  forget_ended_runs();
}

void World::remove(Programs::iterator program) {
  if (program->client) {
    if (tenants_.at(program->tenant).is_run()) life_->runs.left(tree_.key_of(program->pid));
    life_->broker().leave(*program->client, life_->t.now);
  }
  tree_.end(program->pid);
  programs_.erase(program);
}

// Only limits refuse: the GPU has room for all.
void World::ask_memory() {
  Program* program = some_program([](const auto& p) { return p.client.has_value(); });
  if (program == nullptr) return;
  const Bytes bytes = kPiece * dice_.between(1, 8);
  if (memory_of("") + bytes > kMostInAll) return;
  bool fits = true;
  each_level(program->tenant, [&](const Tenant& level) {
    const auto limit = limits_of(level).memory;
    fits = fits && (!limit || memory_of(level.name) + bytes <= *limit);
  });
  const auto told = life_->t.ask(*program->client, bytes, program->movable);
  note(fmt::format("{} asks for {}", program->pid, to_text(bytes)));
  must(told != daemon::TestBroker::Told::Wait, "waits where there is room");
  const bool given = told == daemon::TestBroker::Told::Available;
  must(!given || fits, "is given more than a limit of its levels");
  must(given || !fits, "is refused what its limits allow");
  if (given) program->has += bytes;
}

void World::free_memory() {
  Program* program =
      some_program([](const auto& p) { return p.client.has_value() && p.has > Bytes{}; });
  if (program == nullptr) return;
  const Bytes bytes = std::min(program->has, kPiece * dice_.between(1, 8));
  note(fmt::format("{} frees {}", program->pid, to_text(bytes)));
  program->has -= bytes;
  life_->t.free(*program->client, bytes, bytes, program->movable ? Bytes{} : bytes);
}

// --- people ------------------------------------------------------------------------------------

void World::change_limits() {
  const Tenant& tenant = some_tenant();
  daemon::Declaration change;
  if (!dice_.one_in(4)) change.cores = dice_.pick({100, 50, 30, 20, 80, 10, 60});
  if (!dice_.one_in(3)) change.memory = gib(dice_.between(0, 8));
  if (!change.empty()) limit(tenant.name, change);
}

void World::limit(const std::string& name, const daemon::Declaration& change) {
  Tenant& tenant = tenants_.at(name);
  const auto set = life_->changes.set_limits(id_of(tenant), change, life_->t.now);
  note(fmt::format("limit {} cores {} memory {}{}", tenant.name, change.cores.value_or(0),
                   change.memory ? to_text(*change.memory) : "-", set ? "" : ": refused"));
  if (!set) return;
  must(*set, "the change is written");
  check_time(tenant);
  if (change.cores) tenant.live.cores = change.cores;
  if (change.memory) tenant.live.memory = change.memory;
}

void World::reset_limits() {
  Tenant& tenant = some_tenant();
  note("reset " + tenant.name);
  check_time(tenant);
  const auto reset = life_->changes.reset_limits(id_of(tenant), life_->t.now);
  must(reset && *reset, "the reset is written");
  tenant.live = {};
}

void World::pause_or_resume() {
  Tenant& tenant = some_tenant();
  tenant.paused = !tenant.paused && dice_.one_in(2);
  note((tenant.paused ? "pause " : "resume ") + tenant.name);
  const auto set = life_->changes.set_paused(id_of(tenant), tenant.paused, life_->t.now);
  must(set && *set, "the pause is written");
}

void World::change_setting() {
  const std::string value = dice_.pick({"5ms", "4ms", "6ms"});
  note("turn=" + value);
  const auto set = life_->changes.set_setting(*daemon::find_setting("turn"), value, life_->t.now);
  must(set && *set, "the setting is written");
  settings_["turn"] = value;
}

}  // namespace nvshare::properties
