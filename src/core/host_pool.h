#pragma once

#include <optional>
#include <vector>

#include "base/units.h"

namespace nvshare::core {

class Residency;

// The host memory that clients of all GPUs leave to. Each GPU claims its shortage of it; a part
// that a client does not use any more can be passed to another client.
class HostPool {
 public:
  // What the machine can spare; none: nobody has said, and every client leaves to what it has.
  void set_most(std::optional<Bytes> most) { most_ = most; }
  std::optional<Bytes> most() const { return most_; }

  void join(const Residency& gpu) { gpus_.push_back(&gpu); }
  void leave(const Residency& gpu) { std::erase(gpus_, &gpu); }

  // The part that clients of this GPU can use: all but the claims of the other GPUs.
  Bytes left_for(const Residency& gpu) const;

 private:
  std::optional<Bytes> most_;
  std::vector<const Residency*> gpus_;
};

}  // namespace nvshare::core
