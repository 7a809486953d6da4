#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/core.h"
#include "dice.h"
#include "watch.h"

namespace nvshare::properties {

core::Config random_config(Dice& dice);
core::Limits random_limits(Dice& dice);

struct Told {
  core::Event event;
  Time at{};
  bool taken = false;
  std::vector<std::string> decisions;
};

// Plays a shell and its clients, well and badly behaved, as the dice say: they answer or do not,
// die at any moment, report memory in odd pieces, send twice, send nonsense, send late.
class Player {
 public:
  explicit Player(Dice dice);

  // Until the dice are used up or something is broken.
  void play();
  // From here on everyone behaves: clients answer, give back what they get and ask for nothing
  // more, nobody is paused or limited. Whoever waits and could ever have its memory must be served,
  // first beside the tenants that are held asleep, then with them.
  // Says who is not; empty when all are.
  std::string settle();

  const core::Config& config() const { return config_; }
  const Watch& watch() const { return watch_; }
  const std::vector<Told>& told() const { return told_; }
  std::string story() const;  // what was told and answered, for people

 private:
  bool tell(const core::Event& event, Time at);
  bool tell(const core::Event& event) { return tell(event, now_); }
  void one_thing();
  void pass_time();
  void wake_up();
  void change_the_machine();
  void change_tenants();
  void change_clients();
  void ask_for_work();
  void answer();
  void report_usage();
  void allocate();
  void move_memory();
  core::MemoryMoved with_left(const ShadowClient& client, core::MemoryMoved moved);
  core::HostMemoryComing some_host_memory();
  void change_settings();
  void talk_nonsense();
  core::Event nonsense();

  core::ClientId some_client();
  core::ClientId some_client(bool (*fitting)(const ShadowClient&));
  std::optional<core::TenantId> some_parent();
  core::TenantId some_tenant() { return {dice_.below(6)}; }
  core::GpuId some_gpu() { return {dice_.below(3)}; }
  Bytes some_bytes();
  Duration some_time();

  bool answer_all();
  bool behave_once();
  bool behave();
  bool is_held(core::TenantId tenant) const;
  std::string left_behind() const;
  bool somebody_pays_off_debt() const;

  Dice dice_;
  core::Config config_;
  core::Core core_;
  Watch watch_;
  Time now_{};
  std::vector<Told> told_;
};

}  // namespace nvshare::properties
