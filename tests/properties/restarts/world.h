#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dice.h"
#include "due.h"
#include "life.h"

namespace nvshare::properties {

// Users, their runs, runs inside runs and programs on one GPU, as somebody beside the scheduler
// sees them. They come, fork, end and work; people limit and pause them; the scheduler is killed
// and started again. What it says and does is compared with this picture all the time.
class World {
 public:
  explicit World(Dice dice);

  // Something happens, and everything is checked.
  void step();
  // All programs are back, and nothing changes for a while: each has its due.
  void quiet();
  // What steps are made of.
  void restart();
  void run_for(Duration duration);
  void limit(const std::string& tenant, const daemon::Declaration& limits);
  void start_program_in(const std::string& tenant);
  // GPU time that the tenant has had.
  Duration used_by(const std::string& tenant) const { return tenants_.at(tenant).used; }

 private:
  // A user or a run.
  struct Tenant {
    std::string name;
    std::uint32_t uid = 0;
    std::string parent;        // empty: a user
    core::Limits asked;        // with which the run began
    daemon::Declaration live;  // the changes of people
    bool paused = false;
    int keeper = 0;        // of a run; 0: gone
    std::string group;     // of a run; empty: none
    Duration used{};       // GPU time, with all parts
    Duration used_then{};  // at `then`
    // GPU time beyond the limit, and the least that was ever.
    Duration ahead{};
    Duration least_ahead{};
    Duration then{};  // when its limit changed, or the scheduler began
    bool is_run() const { return !parent.empty(); }
  };
  struct Turn {
    std::uint64_t grant = 0;
    std::optional<Duration> budget;
    bool dropped = false;
    Duration lasted{};
  };
  struct Program {
    int pid = 0;
    std::string tenant;
    Duration kernel{};
    bool works = true;    // always has work; false: never
    bool movable = true;  // its memory
    bool lost = false;    // it will not come back to a scheduler
    Bytes has{};
    Duration used{};
    std::optional<core::ClientId> client;  // of the present scheduler
    std::optional<Turn> turn;
  };
  using Programs = std::list<Program>;

  // --- runs (world_runs.cpp)
  void begin_run();
  bool open_run(Tenant& run);
  void end_keeper();
  void new_keeper();
  void end_whole_run();
  void end_all_in(const std::string& run);
  void forget_ended_runs();
  void forget_unwritten();

  // --- what else happens (world_steps.cpp)
  void start_program();
  void fork_program();
  void end_program();
  void change_limits();
  void reset_limits();
  void pause_or_resume();
  void change_setting();
  void ask_memory();
  void free_memory();
  void come_back(Program& program);
  Tenant* some_run();
  Tenant& some_tenant();
  Program* some_program(const std::function<bool(const Program&)>& which);
  int starter_in(const Tenant& tenant);
  void add_program(int pid, const std::string& tenant);
  void join(Program& program);
  void remove(Programs::iterator program);
  core::TenantId id_of(const Tenant& tenant);

  // --- the GPU (world_gpu.cpp)
  void hear();
  void advance(Duration duration);
  void give_back(Program& program);
  static std::optional<Duration> left_of(const Program& program);
  void end_of_turn();

  // --- what must hold (world.cpp)
  void check();
  void check_tenants();
  void check_programs();
  void check_grants();
  // The level had no more GPU time than its limit since its limit was set. From now on afresh.
  void check_time(Tenant& tenant);
  static void forget_stretches(Tenant& tenant);
  Tree tree_with_work() const;
  [[noreturn]] void fail(const std::string& what) const;
  void must(bool holds, const std::string& what) const {
    if (!holds) fail(what);
  }
  std::string state_text() const;

  // --- the tree
  void each_level(const std::string& name, const std::function<void(const Tenant&)>& call) const;
  bool is_below(const std::string& name, const std::string& tenant) const;
  bool is_paused(const std::string& name) const;
  static core::Limits limits_of(const Tenant& tenant);
  core::Limits tightest(const std::string& name) const;
  Bytes memory_of(const std::string& name) const;
  void note(const std::string& what);

  Dice dice_;
  ProcessTree tree_;
  std::map<std::string, Tenant> tenants_;
  std::vector<std::string> runs_;  // in the order of their beginning
  Programs programs_;
  std::string written_;  // the state file
  std::unique_ptr<Life> life_;
  Duration clock_{};
  Duration next_sample_{};
  std::map<std::string, std::string> settings_;  // changed by people
  std::string story_;
};

}  // namespace nvshare::properties
