#include "core/compute_engine.h"

#include "core/metered_engine.h"
#include "core/policy/window_rules.h"
#include "core/window_engine.h"

namespace nvshare::core {

void ComputeEngine::enter_ready(Client& client, std::uint64_t seq) {
  client.run.phase = Phase::Ready;
  client.run.ready_seq = seq;
  client.share->ready.insert(client.ready_key());
  each_level(*client.share, [](Share& one) { ++one.wanting; });
}

void ComputeEngine::leave_ready(Client& client) {
  client.share->ready.erase(client.ready_key());
  client.run.phase = Phase::Off;
  each_level(*client.share, [](Share& one) { --one.wanting; });
}

void ComputeEngine::enter_running(Client& client, std::uint64_t seq, std::optional<Duration> budget,
                                  const Reason& why, Time now, Decisions& out) {
  client.share->ready.erase(client.ready_key());
  client.run.phase = Phase::Running;
  client.run.grant_seq = seq;
  client.run.granted_at = now;
  client.run.budget = budget;
  client.share->held.emplace(seq, &client);
  each_level(*client.share, [](Share& one) { ++one.running; });
  out.push_back({Grant{client.id, budget}, why});
}

void ComputeEngine::enter_stopping(Client& client, const Reason& why, Time now, Decisions& out) {
  client.run.phase = Phase::Stopping;
  client.run.dropped_at = now;
  client.share->held.erase({client.run.grant_seq, &client});
  each_level(*client.share, [](Share& one) { ++one.stopping; });
  stopped_.push_back(&client);
  out.push_back({Drop{client.id}, why});
}

void ComputeEngine::enter_overdue(Client& client) {
  client.run.phase = Phase::Overdue;
  each_level(*client.share, [](Share& one) { ++one.overdue; });
}

void ComputeEngine::leave_running(Client& client, Time now) {
  const bool stopping = client.run.phase != Phase::Running;
  const bool overdue = client.run.phase == Phase::Overdue;
  if (!stopping) client.share->held.erase({client.run.grant_seq, &client});
  each_level(*client.share, [&](Share& one) {
    if (stopping) --one.stopping;
    if (overdue) --one.overdue;
    --one.running;
    --one.wanting;
  });
  client.run.phase = Phase::Off;
  client.run.released_at = now;
}

std::unique_ptr<ComputeEngine> make_engine(const Config& config, Time now) {
  if (config.policy == ComputePolicy::Metered) {
    return std::make_unique<MeteredEngine>(config, now);
  }
  return std::make_unique<WindowEngine>(config, window_policy(config.policy), now);
}

}  // namespace nvshare::core
