#include "softgpu/runtime/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

namespace nvshare::softgpu {
namespace {

// The entry of an ordered map whose [base, base + bytes) holds the address.
template <typename Map>
auto containing(Map& map, std::uint64_t address) -> decltype(&map.begin()->second) {
  auto after = map.upper_bound(address);
  if (after == map.begin()) return nullptr;
  auto& entry = std::prev(after)->second;
  return address - entry.base < entry.bytes ? &entry : nullptr;
}

}  // namespace

PageStore::PageStore() : file_(::memfd_create("nvshare-softgpu-memory", MFD_CLOEXEC)) {
  struct stat info {};
  if (file_ && ::fstat(file_.get(), &info) == 0) identity_ = info.st_ino;
}

std::optional<Piece> PageStore::take(std::uint64_t bytes) {
  // Reserve more than wanted, so that an aligned part can be kept of it.
  const std::uint64_t reserved = bytes + kBlock;
  if (reserved < bytes) return std::nullopt;
  void* raw =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return std::nullopt;
  const auto start = reinterpret_cast<std::uint64_t>(raw);
  const std::uint64_t aligned = round_up(start, kBlock);
  if (aligned > start) ::munmap(raw, aligned - start);
  ::munmap(reinterpret_cast<void*>(aligned + bytes), start + kBlock - aligned);
  void* place = reinterpret_cast<void*>(aligned);
  if (::ftruncate(file_.get(), static_cast<off_t>(end_ + bytes)) != 0 ||
      ::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
             file_.get(), static_cast<off_t>(end_)) == MAP_FAILED) {
    ::munmap(place, bytes);
    return std::nullopt;
  }
  // A child of fork() has no device memory.
  ::madvise(place, bytes, MADV_DONTFORK);
  const Piece piece{aligned, bytes, end_};
  end_ += bytes;
  return piece;
}

void PageStore::give_back(const Piece& piece) {
  ::munmap(reinterpret_cast<void*>(piece.address), piece.bytes);
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(piece.offset), static_cast<off_t>(piece.bytes));
}

std::optional<std::uint64_t> SmallBlocks::place(std::uint64_t bytes) {
  const std::uint64_t wanted = round_up(bytes, kSmallest);
  for (auto& [address, block] : blocks_) {
    for (auto gap = block.gaps.begin(); gap != block.gaps.end(); ++gap) {
      if (gap->second < wanted) continue;
      const std::uint64_t offset = gap->first;
      const std::uint64_t left = gap->second - wanted;
      block.gaps.erase(gap);
      if (left > 0) block.gaps.emplace(offset + wanted, left);
      return address + offset;
    }
  }
  return std::nullopt;
}

void SmallBlocks::add_block(const Piece& piece) {
  blocks_[piece.address] = Block{piece, {{0, piece.bytes}}};
}

std::optional<Piece> SmallBlocks::free(std::uint64_t address, std::uint64_t bytes) {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return std::nullopt;
  auto found = std::prev(after);
  auto& gaps = found->second.gaps;
  auto [gap, added] = gaps.emplace(address - found->first, round_up(bytes, kSmallest));
  if (!added) return std::nullopt;
  const auto next = std::next(gap);
  if (next != gaps.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    gaps.erase(next);
  }
  if (gap != gaps.begin()) {
    const auto before = std::prev(gap);
    if (before->first + before->second == gap->first) {
      before->second += gap->second;
      gaps.erase(gap);
      gap = before;
    }
  }
  if (gap->second != found->second.piece.bytes) return std::nullopt;
  const Piece piece = found->second.piece;
  blocks_.erase(found);
  return piece;
}

const Piece* SmallBlocks::block_of(std::uint64_t address) const {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  const Piece& piece = std::prev(after)->second.piece;
  return address - piece.address < piece.bytes ? &piece : nullptr;
}

Allocation* AddressMap::find(std::uint64_t address) {
  return containing(allocations, address);
}
Mapping* AddressMap::find_mapping(std::uint64_t address) {
  return containing(mappings, address);
}
Reservation* AddressMap::find_reservation(std::uint64_t address) {
  return containing(reservations, address);
}

bool AddressMap::device_can(std::uint64_t address, std::uint64_t bytes, bool write, int device) {
  while (bytes > 0) {
    std::uint64_t end = 0;
    if (const Allocation* allocation = find(address)) {
      end = allocation->base + allocation->bytes;
    } else if (const Mapping* mapping = find_mapping(address)) {
      const auto access = mapping->device_access.find(device);
      const auto wanted =
          write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
      if (access == mapping->device_access.end() || (access->second & wanted) != wanted) {
        return false;
      }
      end = mapping->base + mapping->bytes;
    } else {
      return false;
    }
    const std::uint64_t step = std::min(bytes, end - address);
    address += step;
    bytes -= step;
  }
  return true;
}

bool AddressMap::covers(std::uint64_t address, std::uint64_t bytes) {
  while (bytes > 0) {
    std::uint64_t end = 0;
    if (const Allocation* allocation = find(address)) {
      end = allocation->base + allocation->bytes;
    } else if (const Mapping* mapping = find_mapping(address)) {
      end = mapping->base + mapping->bytes;
    } else {
      return false;
    }
    const std::uint64_t step = std::min(bytes, end - address);
    address += step;
    bytes -= step;
  }
  return true;
}

namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

template <typename Transfer>
bool in_parts(void* to, const void* from, std::size_t bytes, Transfer transfer) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kMostAtOnce);
    const iovec one{target, part};
    const iovec other{const_cast<char*>(source), part};
    const ssize_t moved = transfer(one, other);
    if (moved <= 0) return false;
    target += moved;
    source += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
  return true;
}

}  // namespace

bool safe_read(void* to, const void* from, std::size_t bytes) {
  return in_parts(to, from, bytes, [](const iovec& target, const iovec& source) {
    return ::process_vm_readv(getpid(), &target, 1, &source, 1, 0);
  });
}

bool safe_write(void* to, const void* from, std::size_t bytes) {
  return in_parts(to, from, bytes, [](const iovec& target, const iovec& source) {
    return ::process_vm_writev(getpid(), &source, 1, &target, 1, 0);
  });
}

}  // namespace nvshare::softgpu
