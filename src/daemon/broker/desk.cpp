#include "daemon/broker/desk.h"

#include <utility>
#include <variant>

namespace nvshare::daemon {
namespace {

// What comes most often, and leaves everybody as much memory as before.
bool is_about_turns(const core::Event& event) {
  return std::holds_alternative<core::WorkRequested>(event) ||
         std::holds_alternative<core::Released>(event) ||
         std::holds_alternative<core::Usage>(event) || std::holds_alternative<core::Tick>(event);
}

}  // namespace

Result<core::Decisions> Desk::decide(const core::Event& event, Time now) {
  auto taken = core_.step(event, now);
  if (taken && !is_about_turns(event)) due.rooms = due.claims = true;
  return taken;
}

Result<void> Desk::step(const core::Event& event, Time now) {
  auto taken = decide(event, now);
  if (!taken) return taken.error();
  follow(std::move(*taken), now);
  return {};
}

void Desk::follow(core::Decisions decisions, Time now) {
  for (core::Decision& one : decisions) decisions_.push_back(std::move(one));
  if (std::exchange(following_, true)) return;
  do {
    while (!decisions_.empty()) {
      const core::Decision next = std::move(decisions_.front());
      decisions_.pop_front();
      follower_.act(next, now);
    }
  } while (follower_.catch_up(now));
  following_ = false;
}

ClientRecord* Desk::find(ClientId client) {
  const auto at = clients.find(client);
  return at == clients.end() ? nullptr : &at->second;
}

void Desk::note(const ClientRecord& client, std::string_view event,
                std::initializer_list<Field> fields) {
  trace.add(event, tenants.at(client.tenant).is.name, client.id.value, fields);
}

std::string Desk::text_of(const core::Reason& reason) const {
  return core().text_of(reason);
}

void Desk::disconnect(const ClientRecord& client, std::string_view why) {
  log.warn("client_disconnected", {{"client", client.id.value},
                                   {"tenant", tenants.at(client.tenant).is.name},
                                   {"pid", client.pid},
                                   {"reason", why}});
  outbox.disconnect(client.id, why);
}

}  // namespace nvshare::daemon
