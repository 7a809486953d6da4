#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "softgpu/config.h"
#include "softgpu/engine/segment.h"
#include "softgpu/runtime/memory.h"
#include "softgpu/runtime/objects.h"
#include "softgpu/runtime/residence.h"

namespace nvshare::softgpu {

class Runtime;
using Lock = std::unique_lock<std::mutex>;

// One thing for the card to do, and what it means here once the card's time for it has passed.
struct Op {
  Work work = Work::kMarker;
  int device = 0;
  double amount = 0;
  double width = 0;
  // The effect on memory. Called with the lock, which it may let go while it is busy with bytes:
  // nothing that effects use is unmapped meanwhile. An error sticks to the context.
  std::function<CUresult(Runtime&, Lock&)> effect;
  std::function<void(Nanos finished_at)> done;  // with the lock, after the effect
  // Of kHost work one of these: called without the lock on the callback thread, or asked with the
  // lock until it says yes.
  std::function<void(CUresult status)> call;
  std::function<bool(Runtime&)> ready;
  std::shared_ptr<Context> context;
};

// The driver within this process. There is one, because the driver's ABI has no handle for it; it
// is made by the first call and never destroyed, so that no call at exit can come too late.
class Runtime {
 public:
  static Runtime& instance();

  std::mutex mutex;  // guards everything below, except as noted

  // --- start ---
  CUresult initialise();  // cuInit; needs the lock
  CUresult init_state = CUDA_ERROR_NOT_INITIALIZED;
  std::atomic<bool> forked = false;  // a child of fork(): the driver is gone
  Config config;
  std::unique_ptr<Segment> segment;
  int device_count() { return segment->shown(); }
  const DeviceConfig& device_config(int device) {
    return segment->card().devices[segment->on_card(device)].config;
  }

  // --- handles ---
  std::uint64_t new_handle() { return next_handle_ += 0x10; }
  std::uint64_t new_id() { return ++next_id_; }
  Registry<Context> contexts;
  Registry<Stream> streams;
  Registry<Event> events;
  Registry<Module> modules;
  Registry<Function> functions;
  Registry<Library> libraries;
  Registry<Kernel> kernels;
  Registry<LinkState> links;
  Registry<Array> arrays;
  Registry<Mipmap> mipmaps;
  Registry<Pool> pools;
  Registry<Graph> graphs;
  Registry<Node> nodes;  // aliases of what their graph owns
  Registry<GraphExec> execs;
  Registry<UserObject> user_objects;
  Registry<Physical> physicals;
  std::array<std::shared_ptr<Context>, kMaxDevices> primary;
  std::array<int, kMaxDevices> primary_references{};
  std::array<unsigned, kMaxDevices> primary_flags{};
  std::array<std::shared_ptr<Pool>, kMaxDevices> default_pool;
  std::array<std::shared_ptr<Pool>, kMaxDevices> current_pool;
  std::vector<std::weak_ptr<Capture>> captures;
  std::set<std::uint64_t> resource_descriptions;  // of green contexts

  // --- memory ---
  AddressMap addresses;
  PageStore pages;
  Residence residence;
  std::array<SmallBlocks, kMaxDevices> small_blocks;
  std::map<std::uint64_t, UniqueFd> exports;    // tokens of memory handed to other processes
  std::map<std::uint64_t, int> graph_live;      // allocation nodes: launches that hold the memory
  std::array<std::uint64_t, 4> graph_memory{};  // used, used high, reserved, reserved high

  // --- work ---
  // Submits to the lane, after the lane's own work and `deps`; may wait for room.
  LanePoint submit(Lock& lock, int lane, Op op, std::span<const LanePoint> deps);
  // A lane in which nothing waits, or else the one with the least.
  int pick_lane(int preferred);
  bool finished(LanePoint point) const {
    return point.packed == 0 ||
           lanes_[static_cast<std::size_t>(point.lane())].retired >= point.seq();
  }
  bool idle() const { return active_ == 0; }
  // Plays the card's time up to now and does what is due. Anyone may, one does.
  void pump(Lock& lock);
  void wait(Lock& lock, LanePoint point);
  // The ends of all lanes that have work of the context; of any when null.
  std::vector<LanePoint> pending_of(const Context* context) const;
  void wait_all(Lock& lock, const Context* context);
  // Waits until no effect is busy with memory: whoever unmaps calls it first.
  void wait_for_effects(Lock& lock);
  // Waits for the context's work, except for what has no end: that is dropped.
  void end_work(Lock& lock, const Context* context);

  // --- faults ---
  bool fault_due(std::int64_t setting, std::uint64_t& counter) {
    ++counter;
    return setting > 0 && counter == static_cast<std::uint64_t>(setting);
  }
  std::uint64_t allocations = 0;
  std::uint64_t copies = 0;
  std::uint64_t kernels_launched = 0;
  std::uint64_t work_started = 0;
  void lose_device(int device);
  bool lost(int device) { return segment->card().devices[segment->on_card(device)].lost != 0; }

 private:
  struct Pending {
    Op op;
    std::uint64_t seq = 0;
    std::uint64_t order = 0;
    Nanos finished_at = 0;
    int lane = 0;
    bool dispatched = false;
  };
  struct LaneState {
    std::deque<Pending> pending;
    std::uint64_t collected = 0;
    std::uint64_t retired = 0;
    std::uint64_t submitted = 0;
  };
  struct Callback {
    std::function<void(CUresult)> call;
    CUresult status = CUDA_SUCCESS;
    int lane = 0;
    std::uint64_t seq = 0;
  };

  Runtime() = default;
  void worker();
  void callback_worker();
  std::vector<Pending> collect();
  bool serve_hosts();
  void finish(Lock& lock, Pending& item);
  Nanos next_look();
  void wait_until(std::condition_variable& condition, Lock& lock, Nanos until);
  void look_for_losses();
  std::uint64_t enter(int lane, Op op, std::span<const LanePoint> deps);

  std::array<LaneState, kMaxLanes> lanes_;
  std::uint64_t active_ = 0;  // lanes with work that is not retired
  bool pumping_ = false;
  int hosts_ = 0;  // kHost items under way
  int waiters_ = 0;
  Nanos poll_pause_ = 0;
  Nanos last_reap_ = 0;
  Nanos worker_until_ = 0;
  std::condition_variable changed_;
  std::condition_variable worker_wake_;
  std::condition_variable callback_wake_;
  std::deque<Callback> callbacks_;
  bool callback_thread_ = false;
  std::uint64_t next_handle_ = 0x5f7500000000;
  std::uint64_t next_id_ = 0;
};

}  // namespace nvshare::softgpu
