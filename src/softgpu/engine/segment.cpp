#include "softgpu/engine/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>

#include "softgpu/engine/schedule.h"

namespace nvshare::softgpu {
namespace {

constexpr std::uint64_t kMagic = 0x55504774666f536e;
constexpr std::uint64_t kLayout = 1;
constexpr int kLockAttempts = 50'000;

Error system_error(const char* what) {
  return Error{fmt::format("{}: {}", what, std::strerror(errno))};
}

void pause_briefly() {
  const timespec pause{0, 200'000};
  nanosleep(&pause, nullptr);
}

// The name holds the layout, so that builds that differ in it never meet.
std::string prefix_of(const std::string& name) {
  return fmt::format("nvshare-softgpu-{}.{}/{}/{}", kLayout, sizeof(Card), getuid(), name);
}

bool good_name(const std::string& name) {
  return !name.empty() && name.size() <= 40 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

// Binds an abstract socket; an empty descriptor when the name is taken.
Result<UniqueFd> bind_name(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return system_error("socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) return Error{"card name too long"};
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return fd;
  if (errno == EADDRINUSE) return UniqueFd();
  return system_error("bind");
}

// Held while one looks for the card and makes it if there is none.
Result<UniqueFd> creation_lock(const std::string& prefix) {
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    auto lock = bind_name(prefix + "/lock");
    if (!lock || *lock) return lock;
    pause_briefly();
  }
  return Error{"the card is being opened by another process that does not finish"};
}

Card* map_card(int fd) {
  void* memory = ::mmap(nullptr, sizeof(Card), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, sizeof(Card), MADV_DONTFORK);
  return static_cast<Card*>(memory);
}

bool is_card(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_uid != getuid()) return false;
  if (info.st_size != static_cast<off_t>(sizeof(Card))) return false;
  std::uint64_t words[2] = {};
  return ::pread(fd, words, sizeof words, 0) == static_cast<ssize_t>(sizeof words) &&
         words[0] == kMagic && words[1] == kLayout;
}

// The card as some living process has it open.
UniqueFd find_card(const std::string& prefix) {
  std::ifstream sockets("/proc/net/unix");
  const std::string mark = "@" + prefix + "/at/";
  std::string line;
  while (std::getline(sockets, line)) {
    const auto at = line.find(mark);
    if (at == std::string::npos) continue;
    int pid = 0;
    int fd = 0;
    if (std::sscanf(line.c_str() + at + mark.size(), "%d/%d", &pid, &fd) != 2) continue;
    UniqueFd found(::open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_RDWR | O_CLOEXEC));
    if (found && is_card(found.get())) return found;
  }
  return UniqueFd();
}

void init_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

// The memory is zero as the kernel gives it, which is what every member starts as, bar these.
void init_card(Card& card, const CardConfig& config) {
  init_mutex(card.mutex);
  card.device_count =
      static_cast<std::int32_t>(std::min<std::size_t>(config.devices.size(), kMaxDevices));
  for (int i = 0; i < card.device_count; ++i) {
    card.devices[i].config = config.devices[static_cast<std::size_t>(i)];
    card.devices[i].turn.owner = -1;
  }
  card.next_key = 1;
  card.clock = card.born_at = monotonic_now();
  card.layout = kLayout;
  card.magic = kMagic;
}

flock byte_lock(int slot) {
  flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Nanos monotonic_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanos>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

Result<std::unique_ptr<Segment>> Segment::join(const std::string& name, const CardConfig& config) {
  if (!good_name(name)) {
    return Error{fmt::format("'{}' is not a card name (letters, digits, '.', '_', '-')", name)};
  }
  const std::string prefix = prefix_of(name);
  auto lock = creation_lock(prefix);
  if (!lock) return lock.error();
  std::unique_ptr<Segment> segment(new Segment());
  segment->memory_ = find_card(prefix);
  const bool fresh = !segment->memory_;
  if (fresh) {
    segment->memory_.reset(::memfd_create("nvshare-softgpu", MFD_CLOEXEC));
    if (!segment->memory_) return system_error("memfd_create");
    if (::ftruncate(segment->memory_.get(), sizeof(Card)) != 0) return system_error("ftruncate");
  }
  segment->card_ = map_card(segment->memory_.get());
  if (segment->card_ == nullptr) return system_error("mmap");
  if (fresh) init_card(*segment->card_, config);
  if (auto taken = segment->take_slot(); !taken) return taken.error();
  if (auto announced = segment->announce(prefix); !announced) return announced.error();
  for (int device = 0; device < segment->card_->device_count; ++device) {
    segment->shown_.push_back(device);
  }
  return segment;
}

Result<std::unique_ptr<Segment>> Segment::look(const std::string& name) {
  if (!good_name(name)) return Error{fmt::format("'{}' is not a card name", name)};
  std::unique_ptr<Segment> segment(new Segment());
  segment->memory_ = find_card(prefix_of(name));
  if (!segment->memory_) return Error{fmt::format("no process has the card '{}' open", name)};
  segment->card_ = map_card(segment->memory_.get());
  if (segment->card_ == nullptr) return system_error("mmap");
  return segment;
}

Segment::~Segment() {
  if (card_ == nullptr) return;
  if (slot_ >= 0) {
    Lock lock(*this);
    advance(*card_, monotonic_now());
    clear_process(*card_, slot_);
  }
  ::munmap(card_, sizeof(Card));
}

int Segment::seen_as(int on_card) const {
  const auto at = std::find(shown_.begin(), shown_.end(), on_card);
  return at == shown_.end() ? -1 : static_cast<int>(at - shown_.begin());
}

void Segment::abandon() {
  card_ = nullptr;  // not mapped in the child (MADV_DONTFORK)
  slot_ = -1;
  memory_.reset();
  presence_.reset();
}

Result<void> Segment::take_slot() {
  Lock lock(*this);
  reap();
  advance(*card_, monotonic_now());
  for (int slot = 0; slot < kMaxProcesses; ++slot) {
    if ((card_->occupied & bit(slot)) != 0) continue;
    flock range = byte_lock(slot);
    if (::fcntl(memory_.get(), F_OFD_SETLK, &range) != 0) continue;
    slot_ = slot;
    Process& process = self();
    process.pid = getpid();
    std::ifstream comm("/proc/self/comm");
    comm.getline(process.name, sizeof process.name);
    card_->occupied |= bit(slot);
    return {};
  }
  return Error{fmt::format("the card has {} processes already", kMaxProcesses)};
}

Result<void> Segment::announce(const std::string& prefix) {
  auto bound = bind_name(fmt::format("{}/at/{}/{}", prefix, getpid(), memory_.get()));
  if (!bound) return bound.error();
  if (!*bound) return Error{"this process has the card open already"};
  presence_ = std::move(*bound);
  return {};
}

bool Segment::alive(int slot) const {
  if (slot == slot_) return true;
  flock range = byte_lock(slot);
  if (::fcntl(memory_.get(), F_OFD_GETLK, &range) != 0) return true;
  return range.l_type != F_UNLCK;
}

int Segment::reap() {
  int dead = 0;
  for_each_bit(card_->occupied, [&](int slot) {
    if (alive(slot)) return;
    clear_process(*card_, slot);
    ++card_->reaped;
    ++dead;
  });
  return dead;
}

Segment::Lock::Lock(Segment& segment) : segment_(segment) {
  if (pthread_mutex_lock(&segment_.card_->mutex) == EOWNERDEAD) {
    segment_.reap();
    repair(*segment_.card_);
    pthread_mutex_consistent(&segment_.card_->mutex);
  }
}

Segment::Lock::~Lock() {
  pthread_mutex_unlock(&segment_.card_->mutex);
}

std::uint64_t memory_used(const Card& card, int device, int slot) {
  std::uint64_t used = 0;
  for_each_bit(card.occupied, [&](int index) {
    const Usage& usage = card.processes[index].usage[device];
    if (slot < 0 || slot == index) used += usage.memory + usage.managed;
  });
  for (const SharedAllocation& shared : card.shared) {
    if (shared.holders == 0 || shared.device != static_cast<std::uint32_t>(device)) continue;
    if (slot < 0 || __builtin_ctzll(shared.holders) == slot) used += shared.bytes;
  }
  return used;
}

namespace {

// Whose managed memory on the device is the oldest; null when there is none.
Usage* oldest_managed(Card& card, int device) {
  Usage* oldest = nullptr;
  for_each_bit(card.occupied, [&](int index) {
    Usage& usage = card.processes[index].usage[device];
    if (usage.managed == 0) return;
    if (oldest == nullptr || usage.managed_used < oldest->managed_used) oldest = &usage;
  });
  return oldest;
}

// Managed memory gives way for it.
bool fits(Segment& segment, int device, std::uint64_t bytes) {
  const std::uint64_t total = segment.card().devices[device].config.memory;
  if (bytes > total) return false;
  const auto lacking = [&] {
    const std::uint64_t used = memory_used(segment.card(), device, -1);
    return used > total - bytes ? used - (total - bytes) : 0;
  };
  if (lacking() == 0 || (segment.reap() > 0 && lacking() == 0)) return true;
  std::uint64_t movable = 0;
  for_each_bit(segment.card().occupied, [&](int index) {
    movable += segment.card().processes[index].usage[device].managed;
  });
  std::uint64_t wanted = lacking();
  if (wanted > movable) return false;
  while (wanted > 0) {
    Usage* victim = oldest_managed(segment.card(), device);
    const std::uint64_t taken = std::min(victim->managed, wanted);
    victim->managed -= taken;
    wanted -= taken;
  }
  return true;
}

}  // namespace

bool charge_memory(Segment& segment, int device, std::uint64_t bytes) {
  Segment::Lock lock(segment);
  if (!fits(segment, segment.on_card(device), bytes)) return false;
  segment.self().usage[segment.on_card(device)].memory += bytes;
  return true;
}

void release_memory(Segment& segment, int device, std::uint64_t bytes) {
  Segment::Lock lock(segment);
  std::uint64_t& memory = segment.self().usage[segment.on_card(device)].memory;
  memory -= std::min(memory, bytes);
}

bool charge_managed(Segment& segment, int device, std::uint64_t bytes) {
  Segment::Lock lock(segment);
  if (!fits(segment, segment.on_card(device), bytes)) return false;
  Usage& usage = segment.self().usage[segment.on_card(device)];
  usage.managed += bytes;
  usage.managed_used = monotonic_now();
  return true;
}

void use_managed(Segment& segment, int device) {
  Segment::Lock lock(segment);
  segment.self().usage[segment.on_card(device)].managed_used = monotonic_now();
}

void release_managed(Segment& segment, int device, std::uint64_t bytes) {
  Segment::Lock lock(segment);
  std::uint64_t& managed = segment.self().usage[segment.on_card(device)].managed;
  managed -= std::min(managed, bytes);
}

std::uint64_t managed_here(Segment& segment, int device) {
  Segment::Lock lock(segment);
  return segment.self().usage[segment.on_card(device)].managed;
}

bool hold_shared(Segment& segment, int device, std::uint64_t identity, std::uint64_t bytes) {
  Segment::Lock lock(segment);
  SharedAllocation* free_entry = nullptr;
  for (SharedAllocation& shared : segment.card().shared) {
    if (shared.holders != 0 && shared.identity == identity) {
      shared.holders |= bit(segment.slot());
      return true;
    }
    if (shared.holders == 0 && free_entry == nullptr) free_entry = &shared;
  }
  if (free_entry == nullptr || !fits(segment, segment.on_card(device), bytes)) return false;
  *free_entry = {bytes, 0, identity, static_cast<std::uint32_t>(segment.on_card(device))};
  free_entry->holders = bit(segment.slot());
  return true;
}

void drop_shared(Segment& segment, std::uint64_t identity) {
  Segment::Lock lock(segment);
  for (SharedAllocation& shared : segment.card().shared) {
    if (shared.holders != 0 && shared.identity == identity) {
      shared.holders &= ~bit(segment.slot());
    }
  }
}

}  // namespace nvshare::softgpu
