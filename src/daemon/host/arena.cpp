#include "daemon/host/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mount.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace nvshare::daemon {
namespace {

constexpr unsigned kMostThreads = 4;

Error failed(const char* what) {
  return Error{fmt::format("{}: {}", what, std::strerror(errno))};
}

// Nobody can give it a name. Unlike anonymous memory it cannot be sealed: a program that makes it
// shorter ends itself, and programs of its own home.
UniqueFd open_nameless(int mount) {
  if (mount < 0) return {};
  return UniqueFd(openat(mount, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
}

// Another open file of the same memory. Also instead of the anonymous memory's first one, which the
// kernel does not count among those that a lease is asked against.
UniqueFd open_again(int memory) {
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  return UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC));
}

// Memory that could be made shorter would end whoever copies into it.
bool seal(int memory) {
  return fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
}

}  // namespace

UniqueFd mount_huge_memory() {
  const UniqueFd made(static_cast<int>(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC)));
  const auto set = [&](unsigned command, const char* key, const char* value) {
    return syscall(SYS_fsconfig, made.get(), command, key, value, 0) == 0;
  };
  const bool good = made && set(FSCONFIG_SET_STRING, "huge", "always") &&
                    set(FSCONFIG_SET_STRING, "size", "0") &&  // it is bounded by who takes of it
                    set(FSCONFIG_CMD_CREATE, nullptr, nullptr);
  if (!good) return {};
  constexpr unsigned kPlain = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  return UniqueFd(static_cast<int>(syscall(SYS_fsmount, made.get(), FSMOUNT_CLOEXEC, kPlain)));
}

Result<MadeMemory> make_host_memory(int mount, Bytes bytes) {
  UniqueFd memory = open_nameless(mount);
  const bool huge = static_cast<bool>(memory);
  if (!huge) memory = UniqueFd(memfd_create("nvshare-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return failed("memfd");
  while (fallocate(memory.get(), 0, 0, bytes.count) < 0) {
    if (errno != EINTR) return failed("fallocate");
  }
  if (!huge && !seal(memory.get())) return failed("seals");
  MadeMemory made{open_again(memory.get()), open_again(memory.get())};
  if (!made.own || !made.theirs) return failed("/proc/self/fd");
  return made;
}

// The kernel gives a write lease on a file only when nobody else has it open, which a mapping is as
// well. The lease goes back at once.
Bytes still_held(int own) {
  if (fcntl(own, F_SETLEASE, F_WRLCK) == 0) {
    (void)fcntl(own, F_SETLEASE, F_UNLCK);
    return {};
  }
  struct stat about {};
  if (fstat(own, &about) != 0) return {};
  return Bytes{static_cast<std::int64_t>(about.st_blocks) * 512};
}

Result<std::unique_ptr<Arena>> Arena::start(ArenaLimit limit, HostMemory host) {
  UniqueFd ready(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ready) return Error{"no event descriptor for the arena"};
  return std::unique_ptr<Arena>(new Arena(limit, std::move(host), std::move(ready)));
}

Arena::Arena(ArenaLimit rule, HostMemory host, UniqueFd ready)
    : rule_(rule), host_(std::move(host)), ready_(std::move(ready)) {
  could_have_ = host_.available();
  refresh({});
  const unsigned count = std::clamp(std::thread::hardware_concurrency() / 4, 1u, kMostThreads);
  for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { run(); });
}

Arena::~Arena() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& one : threads_) one.join();
}

// A part of the machine's memory is that of all that could be arena, when there was most of it:
// what clients were promised stays, whatever else is then started on the machine. What they have
// brought along is memory that was not available at the start; but it is their word, and counts
// while they are there. What somebody is just giving back can be seen twice, and is not believed
// once.
void Arena::refresh(Bytes given, Bytes brought) {
  const Bytes available = host_.available();
  const Bytes before = std::exchange(could_have_, available + given - brought);
  promised_ = std::max(promised_, rule_.of(std::min(before, could_have_)));
  limit_ = std::max(promised_, rule_.of(available + given));
  const HostMemory::Left left = host_.left();
  possible_ = given + left.bytes;
  by_group_ = left.by_group;
}

SegmentId Arena::keep(int pid, Piece piece) {
  held_[pid] += piece.bytes;
  const SegmentId segment = next_segment_++;
  kept_.emplace(segment, Kept{pid, piece.bytes, std::move(piece.memory->own)});
  return segment;
}

void Arena::look() {
  held_.clear();
  std::erase_if(kept_, [&](const auto& one) {
    const Kept& kept = one.second;
    const Bytes bytes = still_held(kept.own.get());
    if (bytes > Bytes{} && kept.pid != 0) held_[kept.pid] += bytes;
    return bytes == Bytes{};
  });
}

void Arena::share(SegmentId segment) {
  const auto at = kept_.find(segment);
  if (at == kept_.end()) return;
  const int pid = std::exchange(at->second.pid, 0);
  if ((held_[pid] -= at->second.bytes) <= Bytes{}) held_.erase(pid);
}

UniqueFd Arena::reopen(SegmentId segment) {
  const auto at = kept_.find(segment);
  return at == kept_.end() ? UniqueFd() : open_again(at->second.own.get());
}

void Arena::release(SegmentId segment, Slabs slabs) {
  const auto at = kept_.find(segment);
  if (at == kept_.end()) return;
  for (Slabs left = slabs; left != 0; left &= left - 1) {
    const auto offset = static_cast<off_t>(wire::kSlabBytes) * std::countr_zero(left);
    const off_t bytes = std::min(static_cast<off_t>(wire::kSlabBytes),
                                 static_cast<off_t>(at->second.bytes.count) - offset);
    (void)fallocate(at->second.own.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                    bytes);
  }
}

// A process that has ended has let go of its files, and with them of the GPU, before it says so.
bool Arena::lives(int pid) {
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return errno != ESRCH;
  pollfd ended{process.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

Slabs Arena::let_go(SegmentId segment) {
  const auto at = kept_.find(segment);
  if (at == kept_.end() || still_held(at->second.own.get()) == Bytes{}) return ~Slabs{0};
  Slabs empty = 0;
  for (int n = 0; n < static_cast<int>(wire::kMostSlabs); ++n) {
    const auto begin = static_cast<off_t>(wire::kSlabBytes) * n;
    if (begin >= at->second.bytes.count) break;
    const off_t data = lseek(at->second.own.get(), begin, SEEK_DATA);
    const bool none =
        data < 0 ? errno == ENXIO : data >= begin + static_cast<off_t>(wire::kSlabBytes);
    if (none) empty |= Slabs{1} << n;
  }
  return empty;
}

void Arena::make(ClientId client, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  for (; bytes.count > 0; bytes -= std::min(bytes, kPiece)) {
    wishes_.push_back({client, std::min(bytes, kPiece)});
  }
  wake_.notify_all();
}

std::vector<Arena::Piece> Arena::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(ready_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(made_, {});
}

// Others may have taken memory since it was promised. `beside`: what other threads are making.
Result<MadeMemory> Arena::make_one(Bytes bytes, Bytes beside) const {
  const Bytes left = host_.left().bytes;
  if (left < bytes + beside) return Error{fmt::format("the machine has {} left", to_text(left))};
  return make_host_memory(mount_.get(), bytes);
}

void Arena::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !wishes_.empty(); });
    if (stopping_) return;
    const Wish wish = wishes_.front();
    wishes_.pop_front();
    const Bytes beside = std::exchange(making_, making_ + wish.bytes);
    lock.unlock();
    Piece piece{wish.client, wish.bytes, make_one(wish.bytes, beside)};
    lock.lock();
    making_ -= wish.bytes;
    made_.push_back(std::move(piece));
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(ready_.get(), &one, sizeof one);
  }
}

}  // namespace nvshare::daemon
