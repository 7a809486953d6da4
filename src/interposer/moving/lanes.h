#pragma once

#include "interposer/catch/driver.h"
#include "interposer/guest/sys.h"

// What both engines know of memory that moves, and of the contexts that it belongs to.
namespace nvshare::interposer::moving {

// Where a chunk, or a piece of unified memory, is.
enum class Where : uint8_t {
  kHere,     // on the GPU
  kChosen,   // the same, and about to leave
  kLeaving,  // being moved by the link's thread, which alone touches it until it is done
  kComing,   // the same
  kAway,
  kPinned,  // on the GPU for ever
};
constexpr bool is_resident(Where where) {
  return where != Where::kAway && where != Where::kComing;
}

// What an engine has in a context of the program's. Lives as long as its Space; the context may go.
struct ContextLane {
  CUcontext context = nullptr;
  bool leaving = false;  // the driver is ending it: nothing is moved in it
};

inline constexpr size_t kMaxLanes = 64;

// The lane of the context; a free one when that is null. Null when there is none.
template <typename Lane>
Lane* find_lane(Lane (&lanes)[kMaxLanes], CUcontext context) {
  for (Lane& lane : lanes) {
    if (lane.context == context) return &lane;
  }
  return nullptr;
}

// The same, made when there is none yet. Null when there is no place for it.
template <typename Lane>
Lane* take_lane(Lane (&lanes)[kMaxLanes], CUcontext context) {
  if (Lane* known = find_lane(lanes, context)) return known;
  Lane* made = find_lane(lanes, nullptr);
  if (made != nullptr) made->context = context;
  return made;
}

// The lane of the context; null when there is nothing in it yet.
template <typename Space>
auto* known_lane(Space& space, CUcontext context) {
  const Lock lock(space.mutex);
  return context == nullptr ? nullptr : find_lane(space.lanes, context);
}

}  // namespace nvshare::interposer::moving
