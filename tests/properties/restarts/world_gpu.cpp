// How programs use the GPU: as the library does it, in virtual time.

#include <fmt/format.h>

#include <algorithm>

#include "world.h"

namespace nvshare::properties {

// A kernel that has begun is played to its end.
std::optional<Duration> World::left_of(const Program& program) {
  const Turn& turn = *program.turn;
  const auto to_kernel_end = [&](Duration point) {
    if (program.kernel == 0ns || point % program.kernel == 0ns) return point;
    return point + program.kernel - point % program.kernel;
  };
  std::optional<Duration> stop;
  if (turn.budget) stop = to_kernel_end(std::max<Duration>(*turn.budget, 1ns));
  if (turn.dropped) stop = std::min(stop.value_or(Duration::max()), to_kernel_end(turn.lasted));
  if (!stop) return std::nullopt;
  return std::max<Duration>(0ns, *stop - turn.lasted);
}

void World::hear() {
  for (Program& program : programs_) {
    if (!program.client) continue;
    daemon::FakeOutbox& outbox = life_->t.outbox;
    for (const auto& grant : outbox.take<wire::Grant>(*program.client)) {
      must(!program.turn, "a second grant");
      program.turn = Turn{grant.grant, {}, false, {}};
      if (grant.budget > 0)
        program.turn->budget = Duration{static_cast<std::int64_t>(grant.budget)};
    }
    for (const auto& drop : outbox.take<wire::Drop>(*program.client)) {
      if (program.turn && program.turn->grant == drop.grant) program.turn->dropped = true;
    }
    outbox.sent[*program.client].clear();
  }
}

void World::advance(Duration duration) {
  clock_ += duration;
  life_->t.now += duration;
  const auto together = std::count_if(programs_.begin(), programs_.end(),
                                      [](const auto& p) { return p.turn.has_value(); });
  for (Program& program : programs_) {
    if (!program.turn) continue;
    program.turn->lasted += duration;
    program.used += duration / together;
    for (Tenant* level = &tenants_.at(program.tenant);;) {
      level->used += duration / together;
      if (!level->is_run()) break;
      level = &tenants_.at(level->parent);
    }
    life_->t.meter(*program.client, program.turn->grant, program.turn->lasted);
  }
}

void World::give_back(Program& program) {
  const Turn turn = *program.turn;
  program.turn.reset();
  life_->t.release(*program.client, turn.grant, turn.lasted, program.works);
}

void World::run_for(Duration duration) {
  note("pass " + to_text(duration));
  const Duration until = clock_ + duration;
  int stuck = 0;
  for (hear(); clock_ < until; hear()) {
    check_grants();
    Duration next = until;
    const auto wakeup = life_->broker().next_wakeup();
    if (wakeup) next = std::min(next, clock_ + std::max<Duration>(0ns, *wakeup - life_->t.now));
    for (const Program& program : programs_) {
      if (!program.turn) continue;
      if (const auto left = left_of(program)) next = std::min(next, clock_ + *left);
    }
    stuck = next > clock_ ? 0 : stuck + 1;
    must(stuck < 1000, "time does not pass");
    advance(next - clock_);
    for (Program& program : programs_) {
      if (program.turn && left_of(program) == 0ns) give_back(program);
    }
    if (wakeup && *wakeup <= life_->t.now) life_->broker().tick(life_->t.now);
    end_of_turn();
  }
  for (auto& [name, tenant] : tenants_) check_time(tenant);
}

void World::end_of_turn() {
  if (clock_ >= next_sample_) {
    life_->broker().sample(life_->t.now);
    life_->changes.look(life_->t.now, {});
    next_sample_ = clock_ + 1s;
  }
  (void)life_->kept.write_some(life_->t.now);
}

}  // namespace nvshare::properties
