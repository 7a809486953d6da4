#include "life.h"

namespace nvshare::properties {
namespace {

constexpr Bytes kGpu = gib(64);  // more than all programs ask for together: only limits refuse

}  // namespace

Life::Life(const ProcessTree& tree, std::string& written)
    : processes(tree.picture().processes()),
      reactor(*daemon::Reactor::make()),
      t(settings.core, kGpu, reactor.now()),
      kept(t.log, {},
           [&written](const daemon::State& state, daemon::Durable) -> Result<void> {
             written = daemon::to_text(state);
             return {};
           }),
      changes(t.broker, settings, kept, t.log),
      programs(reactor, settings, kept, processes, t.log),
      runs(processes) {
  programs.use_groups(tree.picture().groups());
  daemon::State before;
  if (!written.empty()) {
    auto state = daemon::parse_state(written);
    EXPECT_TRUE(state) << state.error().message;
    if (state) before = *state;
  }
  if (before.boot.empty()) before.boot = "boot";
  kept.restore(std::move(before), "boot",
               [this](const daemon::KeptRun& run) { return programs.has_processes(run); });
  changes.restore(t.now);
  programs.restore_runs(t.broker);
  kept.write_now();
  for (const daemon::KeptRun& run : kept.runs()) {
    const daemon::TenantRecord* tenant = find(run.name);
    if (tenant != nullptr) runs.begin(tenant->id, {run.pid, run.started}, run.cgroup);
  }
}

}  // namespace nvshare::properties
