#pragma once

#include <cstdint>
#include <optional>

#include "daemon/broker/desk.h"

namespace nvshare::daemon {

// Grants, and the meters of clients that hold one.
class Grants : private Owner {
 public:
  explicit Grants(Desk& desk) : Owner(desk) {}

  void take(ClientRecord& client, const wire::RequestGrant& message, Time now);
  void take(ClientRecord& client, const wire::Released& message, Time now);
  void act(const core::Grant& grant, const core::Reason& why, Time now);
  void act(const core::Drop& drop, const core::Reason& why);
  void act(const core::Overdue& overdue, const core::Reason& why);
  void act(const core::ReadMeter& order, Time now);

  void read_meters(GpuRecord& gpu, Time now, const ClientRecord* releases = nullptr,
                   std::uint64_t released_used = 0);
  void read_all_meters(Time now);
  // The client has work to do, or has none.
  void set_wants(ClientRecord& client, bool wants, Time now);
  // Tells clients how they are watched, but for one that hears of it otherwise.
  void update_watch(const GpuRecord& gpu, std::optional<ClientId> not_told = {});
  void update_watch();

 private:
  std::uint64_t next_grant_ = 1;
};

// How a client is watched: freely when nobody else is on its GPU and no limit binds it.
wire::Watch watch_of(std::size_t clients_on_gpu, const core::Limits& limits, bool paused);

}  // namespace nvshare::daemon
