#pragma once

#include "interposer/catch/driver.h"
#include "interposer/link/link.h"
#include "interposer/memory/table.h"
#include "interposer/moving/swap/swap.h"

// Counting what is allocated. Asked for before the driver is called, noted when it has given, given
// back when the driver has freed.
//
// Every record has a serial number, and an address (or handle) may come back from the driver before
// the end of the call that freed it has been noted. So whoever frees takes a mark before he calls
// the driver and afterwards removes only what is older than it; and a new record at the place of an
// old one means that the old memory is gone.
namespace nvshare::interposer::memory {

// What a number in a record is.
enum class KeyKind : uint8_t { kAddress, kArray, kMipmap, kGraph };

struct Key {
  KeyKind kind;
  uint64_t number;
  uint32_t index = 0;  // of several records with the same number

  uint32_t tag() const { return static_cast<uint32_t>(kind) | index << 8; }
};

// What the memory goes with, if it is not freed.
enum class Lifetime : uint8_t { kContext, kPool, kGraph };

using Serial = uint64_t;

struct Record {
  uint64_t bytes;
  gate::Gate* gate;
  CUcontext context;  // in which it was allocated; null when it does not go with one
  Serial serial;
  Lifetime lifetime;
};

// Physical memory of cuMemCreate: there until neither a handle nor a mapping is left.
struct Physical {
  uint64_t bytes;
  gate::Gate* gate;
  uint64_t handles;   // references, of all handles together
  uint64_t mappings;  // and maps that are about to be
};
struct Handle {
  uint64_t physical;
  uint64_t references;
  Serial serial;
};
struct Mapping {
  uint64_t physical;
  uint64_t bytes;
  Serial serial;
};

// Memory that an executable graph allocates and leaves, or frees for another: memory_graph.h.
struct Left {
  uint64_t exec;
  uint64_t bytes;
  int device;
  bool live;
  Serial serial;
};

// A pool: where its memory is, and whether the program has made it itself (and not been handed one
// that is always there), which is so until it destroys it.
struct PoolRecord {
  CUmemLocation location;
  bool made;
};

// All that is known about memory in this process.
struct Books {
  // Held while a pool that the program could destroy is trimmed, and taken before the other.
  Mutex trimming;

  Mutex mutex;  // of what follows
  Serial last_serial GUARDED_BY(mutex);
  Table<Record> records GUARDED_BY(mutex);
  Table<Physical> physicals GUARDED_BY(mutex);
  Table<Handle> handles GUARDED_BY(mutex);
  Table<Mapping> mappings GUARDED_BY(mutex);      // by address
  Table<Left> left GUARDED_BY(mutex);             // by address
  Table<PoolRecord> pools GUARDED_BY(mutex);      // by handle
  Table<uint64_t> attachments GUARDED_BY(mutex);  // of contexts, beside the first
};
extern Books g_books;

// Everything recorded from now on has a serial number above it.
Serial mark();

// More than any device has: such sizes are not asked for.
inline constexpr uint64_t kMostBytes = uint64_t{1} << 56;

// a * b, or kMostBytes when that is more.
inline uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) || result > kMostBytes ? kMostBytes : result;
}
inline uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_add_overflow(a, b, &result) || result > kMostBytes ? kMostBytes : result;
}

// The bytes of one allocation while the driver is being asked for it. What is not kept is given
// back. Without a gate nothing is counted and nothing refused.
class Charge {
 public:
  Charge(gate::Gate* gate, uint64_t bytes);
  ~Charge();
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  bool refused() const { return refused_; }
  uint64_t bytes() const { return bytes_; }

  // It has become `bytes`. False when that is more than was asked for, and refused.
  bool correct(uint64_t bytes);
  // The driver has given it: it is counted until the record goes.
  void keep(Key key, Lifetime lifetime);
  // The same, as a part of what is recorded there already, if anything is.
  void add_to(Key key, Lifetime lifetime);
  // The same for memory that is recorded elsewhere.
  void keep_unrecorded();

 private:
  gate::Gate* gate_ = nullptr;
  uint64_t bytes_ = 0;
  bool refused_ = false;
};

// What of memory that can move has been freed is told to the scheduler.
inline void tell_freed(const moving::Freed& freed) {
  if (freed.bytes == 0) return;
  link::memory_rounding(*freed.gate, moving::swap::swap_rounding(*freed.gate, 0));
  link::memory_freed(*freed.gate, {freed.bytes, freed.resident, freed.pinned});
}

// How much is counted there; 0 when nothing is.
uint64_t counted(Key key);

// The driver has freed what `key` stood for at the time of the mark.
void uncount(Key key, Serial before);

// All that was allocated in the context before the mark is gone.
void uncount_context(CUcontext context, Serial before);

// Asks the driver which of the addresses with this lifetime it still knows, and stops counting
// those that it does not. For the few moments at which memory goes without having been freed.
void uncount_unknown(Lifetime lifetime);

// Whether what is put into the stream is recorded instead of done. Does no harm to a capture.
bool stream_is_capturing(CUstream stream, bool per_thread);

}  // namespace nvshare::interposer::memory
