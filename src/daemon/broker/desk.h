#pragma once

#include <deque>
#include <initializer_list>
#include <map>
#include <string_view>

#include "base/result.h"
#include "core/core.h"
#include "daemon/broker/records.h"
#include "daemon/broker/trace.h"
#include "daemon/broker/tree.h"
#include "daemon/log.h"
#include "wire/messages.h"

namespace nvshare::daemon {

// What the broker has done to clients. None of these calls comes back into the broker: who cannot
// be reached, or is to be disconnected, is gone a little later, and Broker::leave() says so.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void send(ClientId client, const wire::Header& message) = 0;
  // With a descriptor, which stays the caller's.
  virtual void hand_over(ClientId client, const wire::Header& message, int descriptor) = 0;
  // To the `nvshare run` that holds the tenant, where there is one. Only for information.
  virtual void tell_run(TenantId tenant, const wire::Header& message) = 0;
  virtual void disconnect(ClientId client, std::string_view why) = 0;
  // The client's process ignores what it is told: end it.
  virtual void end(ClientId client) = 0;
};

// What follows from an event.
class Follower {
 public:
  virtual ~Follower() = default;
  virtual void act(const core::Decision& decision, Time now) = 0;
  // What else is due once all decisions are followed. True while that may lead to more.
  virtual bool catch_up(Time now) = 0;
};

// What has changed, so that something is due before the broker returns (Follower::catch_up).
struct Due {
  bool claims = false;  // there may be room for what clients claim to have on the GPU
  bool arena = false;   // something that host memory depends on
  bool rooms = true;    // something that the rooms in clients' pages depend on
};

// The records, and the only door to the core. Each owner of a part of the broker has this desk.
class Desk {
 public:
  // All three outlive the desk. `config` has no problems().
  Desk(const core::Config& config, Time now, Outbox& to, Log& into, Follower& follower)
      : outbox(to), log(into), core_(config, now), follower_(follower) {}

  // Whoever does not follow() what was decided at once uses this.
  Result<core::Decisions> decide(const core::Event& event, Time now);
  Result<void> step(const core::Event& event, Time now);
  // Decisions are followed one after the other, in the order in which they were made. Then all that
  // is due is done, unless that is under way already.
  void follow(core::Decisions decisions, Time now);

  const core::Core& core() const { return core_; }
  ClientRecord* find(ClientId client);
  void note(const ClientRecord& client, std::string_view event,
            std::initializer_list<Field> fields);
  void disconnect(const ClientRecord& client, std::string_view why);
  // A reason for people: the one place where its text is made.
  std::string text_of(const core::Reason& reason) const;

  Outbox& outbox;
  Log& log;
  Trace trace;
  Due due;
  std::map<ClientId, ClientRecord> clients;
  TenantMap tenants;
  std::map<GpuId, GpuRecord> gpus;

 private:
  core::Core core_;
  Follower& follower_;
  std::deque<core::Decision> decisions_;  // made, and not followed yet
  bool following_ = false;
};

// The desk as its owners write it.
class Owner {
 protected:
  explicit Owner(Desk& desk)
      : desk_(desk),
        core_(desk.core()),
        outbox_(desk.outbox),
        log_(desk.log),
        due_(desk.due),
        clients_(desk.clients),
        tenants_(desk.tenants),
        gpus_(desk.gpus) {}
  Result<void> step(const core::Event& event, Time now) { return desk_.step(event, now); }
  ClientRecord* find(ClientId client) { return desk_.find(client); }
  void note(const ClientRecord& client, std::string_view event,
            std::initializer_list<Field> fields) {
    desk_.note(client, event, fields);
  }
  void disconnect(const ClientRecord& client, std::string_view why) {
    desk_.disconnect(client, why);
  }

  Desk& desk_;
  const core::Core& core_;
  Outbox& outbox_;
  Log& log_;
  Due& due_;
  std::map<ClientId, ClientRecord>& clients_;
  TenantMap& tenants_;
  std::map<GpuId, GpuRecord>& gpus_;
};

}  // namespace nvshare::daemon
