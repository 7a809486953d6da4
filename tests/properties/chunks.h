#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/core.h"
#include "dice.h"
#include "watch.h"

namespace nvshare::properties {

// Clients that all want the GPU all the time and whose memory moves in whole chunks of odd sizes.
// Some orders fail, wholly or in part. Now and then they want memory that cannot move, and wait for
// it, or are held asleep for a while. Time is virtual.
class ChunkWorld {
 public:
  explicit ChunkWorld(Dice dice);

  // Until `end`, or until something is broken.
  void play(Time end);
  // How often all of each client's memory was brought to the GPU, and when that was last.
  struct Served {
    int times = 0;
    Time last{};
  };
  const std::map<core::ClientId, Served>& served() const { return served_; }
  bool all_there(core::ClientId id) const;
  int orders() const { return orders_; }
  // How often memory that cannot move was given after a wait, and the longest wait for it, over or
  // not.
  int given_later() const { return given_later_; }
  Duration longest_wait() const;
  const Watch& watch() const { return watch_; }
  std::string story() const;

 private:
  struct Chunk {
    Bytes bytes{};
    bool there = false;
    bool written = false;  // it was there: it needs a place in host memory when it leaves
  };
  struct Order {
    bool out = false;
    Bytes bytes{};
  };
  struct Process {
    std::vector<Chunk> chunks;
    std::deque<Order> orders;
    std::optional<Time> order_due;  // of the first
    std::optional<Time> release_due;
    std::optional<Time> wake_due;
    Time granted_at{};
    Bytes pinned{};
    Bytes awaits{};
    Bytes asked{};  // last
    Time awaits_since{};
  };

  void add_client(core::ClientId id, Bytes room);
  void tell(const core::Event& event);
  void obey(const core::Grant& d);
  void obey(const core::Drop& d);
  void obey(const core::SendOut& d) { take_order(d.client, {true, d.bytes}); }
  void obey(const core::BringIn& d) { take_order(d.client, {false, d.bytes}); }
  void obey(const core::MemoryAvailable& d);
  void obey(const core::MemoryGiven& d);
  void obey(const core::MemoryRefused& d);
  void obey(const core::ReadMeter& d);
  void obey(const auto&) {}
  void pin_some(core::ClientId id);
  void unpin(core::ClientId id);
  void put_to_sleep(core::ClientId id);
  void take_order(core::ClientId id, Order order);
  void follow_order(core::ClientId id);
  std::optional<Time> next_time() const;
  void play_moment();
  static Bytes resident(const Process& process);
  Bytes on_the_host() const;
  static Bytes allocated(const Process& process);

  Dice dice_;
  core::Config config_;
  core::Core core_;
  Watch watch_;
  Time now_{};
  std::optional<Bytes> host_;  // all that there is of it
  std::map<core::ClientId, Process> processes_;
  std::map<core::ClientId, Served> served_;
  int orders_ = 0;
  int given_later_ = 0;
  Duration longest_wait_{};
  std::deque<core::Event> told_;
  std::vector<std::string> story_;
};

}  // namespace nvshare::properties
