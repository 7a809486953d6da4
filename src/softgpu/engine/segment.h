#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "softgpu/engine/card.h"

// How processes find the card and leave it. There is no server and no file: the card is anonymous
// memory that lives as long as a process has it open. A process says where it is found by the name
// of an abstract socket ("@nvshare-softgpu.../at/PID/FD"), which the kernel takes away with the
// process, and holds its place in the card by a lock on one byte, which the kernel lets go the
// same way. So whatever is killed, and however, nothing stays.
namespace nvshare::softgpu {

// What the first process gives the card; later ones take it as it is.
struct CardConfig {
  std::vector<DeviceConfig> devices;
};

class Segment {
 public:
  // Joins the card of that name, or makes it. `name`: letters, digits, '.', '_' and '-', at
  // most 40.
  static Result<std::unique_ptr<Segment>> join(const std::string& name, const CardConfig& config);

  // Opens the card of that name without a place in it, to look at; an error when there is none.
  static Result<std::unique_ptr<Segment>> look(const std::string& name);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Card& card() { return *card_; }
  int slot() const { return slot_; }
  Process& self() { return card_->processes[slot_]; }

  // Programs count the devices that they see. `devices` are those of the card, in the program's
  // order; all of them in the card's order until this is called.
  void show(const std::vector<int>& devices) { shown_ = devices; }
  int shown() const { return static_cast<int>(shown_.size()); }
  // The card's number of a device that the program sees; and the program's number of a device of
  // the card, or -1 when the program does not see it.
  int on_card(int device) const { return shown_.at(static_cast<std::size_t>(device)); }
  int seen_as(int on_card) const;

  // Holds the card's mutex. When a process died holding it, the card is repaired first.
  class Lock {
   public:
    explicit Lock(Segment& segment);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Segment& segment_;
  };

  // Cleans up after processes that are dead. Needs the lock. Returns how many there were.
  int reap();

  // In a child of fork(): lets go of everything without touching the card.
  void abandon();

 private:
  Segment() = default;
  bool alive(int slot) const;
  Result<void> take_slot();
  Result<void> announce(const std::string& prefix);

  Card* card_ = nullptr;
  int slot_ = -1;
  std::vector<int> shown_;
  UniqueFd memory_;    // our own open file description: its byte locks are ours
  UniqueFd presence_;  // the socket whose name says where we are
};

// Bytes used on a device, by one process (its own and what is charged to it) or by all (slot < 0).
std::uint64_t memory_used(const Card& card, int device, int slot);

// Below, `device` is a device as the program counts.
//
// Charges `bytes` to the process if they fit the device; `reap` is asked once before giving up.
bool charge_memory(Segment& segment, int device, std::uint64_t bytes);
void release_memory(Segment& segment, int device, std::uint64_t bytes);

// Managed memory on the device. It takes room like any other, but gives way when the room is
// needed, that of the process first which has not used any for the longest time. False: there is no
// room even so.
bool charge_managed(Segment& segment, int device, std::uint64_t bytes);
void use_managed(Segment& segment, int device);
void release_managed(Segment& segment, int device, std::uint64_t bytes);
// What is still here of this process's.
std::uint64_t managed_here(Segment& segment, int device);

// Shared allocations are named by the identity of their memory. The first holder is charged.
bool hold_shared(Segment& segment, int device, std::uint64_t identity, std::uint64_t bytes);
void drop_shared(Segment& segment, std::uint64_t identity);

Nanos monotonic_now();

}  // namespace nvshare::softgpu
