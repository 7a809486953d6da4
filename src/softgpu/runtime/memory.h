#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "cuda/types.h"

// Device memory as this process sees it: real bytes at real addresses, so that an address on the
// device is the address of the bytes in the process. Pages come from one memory file per process,
// which other processes can open (IPC); they cost nothing until they are touched. How much of the
// card they take is accounted elsewhere (engine/segment.h).
namespace nvshare::softgpu {

using namespace nvshare::cuda;

struct Context;
struct Pool;

inline constexpr std::uint64_t kBlock = std::uint64_t{2} << 20;  // physical granularity
inline constexpr std::uint64_t kSmallest = 512;                  // within a block

inline std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// A stretch of a memory file that is mapped.
struct Piece {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // in the file
};

// The memory file of this process and the pieces of it that are mapped.
class PageStore {
 public:
  PageStore();
  int file() const { return file_.get(); }
  std::uint64_t identity() const { return identity_; }

  // Maps `bytes` (a multiple of kBlock) of zeroed pages, aligned to kBlock.
  std::optional<Piece> take(std::uint64_t bytes);
  void give_back(const Piece& piece);

 private:
  UniqueFd file_;
  std::uint64_t identity_ = 0;
  std::uint64_t end_ = 0;
};

// Cuts blocks into small allocations, first fit, in units of kSmallest.
class SmallBlocks {
 public:
  struct Spot {
    std::uint64_t address = 0;
    std::optional<Piece> fresh;  // set when a block was added for it
  };

  // A place for `bytes` in a block there is, or nothing: then add_block() and ask again.
  std::optional<std::uint64_t> place(std::uint64_t bytes);
  void add_block(const Piece& piece);
  // Frees; returns the block when it is empty now, and forgets it.
  std::optional<Piece> free(std::uint64_t address, std::uint64_t bytes);
  const Piece* block_of(std::uint64_t address) const;

 private:
  struct Block {
    Piece piece;
    std::map<std::uint64_t, std::uint64_t> gaps;  // offset -> bytes
  };
  std::map<std::uint64_t, Block> blocks_;  // by address
};

enum class MemoryKind { kDevice, kPool, kManaged, kHostPinned, kHostRegistered, kImported };

// Something an address can belong to.
struct Allocation {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  std::weak_ptr<Context> context;
  std::weak_ptr<Pool> pool;
  std::uint64_t id = 0;
  unsigned host_flags = 0;
  unsigned sync_memops = 0;
  bool small = false;        // in a shared block
  bool global = false;       // a module's variable: not the user's to free
  bool graph = false;        // from a graph's allocation node
  Piece piece;               // when it has its own
  std::uint64_t origin = 0;  // imported: identity of the other process's memory file
  int opened = 0;            // imported: how often
  // Managed memory: what was advised.
  bool read_mostly = false;
  CUmemLocation preferred{CU_MEM_LOCATION_TYPE_INVALID, 0};
  CUmemLocation prefetched{CU_MEM_LOCATION_TYPE_INVALID, 0};
  std::vector<int> accessed_by;
};

// Physical memory of the virtual memory API.
struct Physical {
  std::uint64_t bytes = 0;
  CUmemAllocationProp prop{};
  bool on_device = true;
  UniqueFd file;  // of its own, so that it can be handed to another process
  std::uint64_t identity = 0;
  std::map<std::uint64_t, int> handles;  // of this process, and how often each is held
};

struct Mapping {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
  std::shared_ptr<Physical> physical;
  std::uint64_t handle = 0;  // by which it was mapped
  std::map<int, CUmemAccess_flags> device_access;
  CUmemAccess_flags host_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
};

struct Reservation {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
};

// All addresses of the process that CUDA knows of.
class AddressMap {
 public:
  std::map<std::uint64_t, Allocation> allocations;
  std::map<std::uint64_t, Mapping> mappings;
  std::map<std::uint64_t, Reservation> reservations;

  Allocation* find(std::uint64_t address);
  Mapping* find_mapping(std::uint64_t address);
  Reservation* find_reservation(std::uint64_t address);

  bool known(std::uint64_t address) {
    return find(address) != nullptr || find_mapping(address) != nullptr;
  }
  // Whether device `device` may read or write every byte.
  bool device_can(std::uint64_t address, std::uint64_t bytes, bool write, int device);
  // Whether [address, address + bytes) lies in what is known, whoever may use it.
  bool covers(std::uint64_t address, std::uint64_t bytes);
};

// Copies within this process from or to addresses that may not be mapped: false, not a signal.
bool safe_read(void* to, const void* from, std::size_t bytes);
bool safe_write(void* to, const void* from, std::size_t bytes);

}  // namespace nvshare::softgpu
