#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/broker/host_arena.h"
#include "daemon/host/host_memory.h"
#include "wire/messages.h"

namespace nvshare::daemon {

// A file system in memory that is nowhere in the tree of files, made of huge pages as far as there
// are any: those are made and pinned three times as fast. Nothing where that is not allowed (it
// takes CAP_SYS_ADMIN) or not known.
UniqueFd mount_huge_memory();

// Memory of which every page is there, so that whoever uses it never finds none: of the `mount`
// that the function above has made, or anonymous (-1). Its pages count as the scheduler's, whoever
// maps them. They are freed when nobody has a descriptor or a mapping any more.
struct MadeMemory {
  UniqueFd own;     // stays with the scheduler, and tells what becomes of the memory
  UniqueFd theirs;  // an open file of its own, to be handed over and closed
};
Result<MadeMemory> make_host_memory(int mount, Bytes bytes);

// What is there of the memory; nothing once nobody has it open or mapped beside `own`.
Bytes still_held(int own);

// The host memory that clients swap out to. Making it takes long, so threads of its own do.
class Arena final : public HostArena {
 public:
  // Never more than `limit`, nor than the machine has left.
  static Result<std::unique_ptr<Arena>> start(ArenaLimit limit, HostMemory host);
  ~Arena() override;

  Bytes limit() const { return limit_; }
  // Looks at what the machine has left beside the `given` bytes that clients have already; some of
  // them were `brought` from a scheduler before this one, as they say.
  void refresh(Bytes given, Bytes brought = {});

  Bytes most() const override { return std::min(limit_, possible_); }
  std::string_view limited_by() const override {
    return limit_ < possible_ ? "arena_limit" : by_group_ ? "cgroup" : "machine";
  }
  void make(ClientId client, Bytes bytes) override;

  // A piece, or why there is none.
  struct Piece {
    ClientId client;
    Bytes bytes{};
    Result<MadeMemory> memory;
  };
  // Becomes readable when there are any.
  int ready() const { return ready_.get(); }
  std::vector<Piece> take();
  // A piece goes to that process. It counts as held until nobody has it any more. Answers its name.
  SegmentId keep(int pid, Piece piece);
  // Looks what has become of the pieces: about once a second.
  void look();
  const std::map<int, Bytes>& held() const override { return held_; }

  void share(SegmentId segment) override;
  UniqueFd reopen(SegmentId segment) override;
  void release(SegmentId segment, Slabs slabs) override;
  bool lives(int pid) override;
  Slabs let_go(SegmentId segment) override;

 private:
  struct Kept {
    int pid = 0;  // 0: several processes have it
    Bytes bytes{};
    UniqueFd own;
  };
  struct Wish {
    ClientId client;
    Bytes bytes{};
  };
  Arena(ArenaLimit rule, HostMemory host, UniqueFd ready);
  void run();
  Result<MadeMemory> make_one(Bytes bytes, Bytes beside) const;

  static constexpr Bytes kPiece = gib(1);  // at most: the first is there soon
  static_assert(kPiece.count <= static_cast<std::int64_t>(wire::kSlabBytes * wire::kMostSlabs));

  const ArenaLimit rule_;
  Bytes limit_{};
  Bytes promised_{};    // the limit does not sink below this
  Bytes could_have_{};  // when it was last looked at: with what was made for clients
  Bytes possible_{};    // by what the machine and the control groups have left
  bool by_group_ = false;
  std::map<SegmentId, Kept> kept_;
  SegmentId next_segment_ = 1;
  std::map<int, Bytes> held_;  // of kept_, when it was last looked at
  const HostMemory host_;
  const UniqueFd mount_ = mount_huge_memory();
  UniqueFd ready_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::deque<Wish> wishes_;
  std::vector<Piece> made_;
  Bytes making_{};  // by threads that have not finished
  std::vector<std::thread> threads_;
};

}  // namespace nvshare::daemon
