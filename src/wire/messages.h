#pragma once

#include <stddef.h>
#include <stdint.h>

// What programs and the scheduler say to each other; docs/protocol.md tells the story. One message
// is one packet of a SOCK_SEQPACKET Unix socket, and one of the structures below, as it lies in
// memory: both ends are on one machine. Nothing here needs the C++ library, for the interposer is
// built from it.
//
// Whoever receives believes nothing: look_at() checks length and type, and every number is checked
// by whoever acts on it. Text is not necessarily terminated.
namespace nvshare::wire {

// Ends talk when their major versions are equal. A newer minor version only appends fields and
// types: a packet may be longer than the structure known here, and unknown types are passed over.
inline constexpr uint16_t kMajor = 1;
inline constexpr uint16_t kMinor = 8;
// From this one on a program may be told to wait for memory that cannot move.
inline constexpr uint16_t kMinorPinnedWaits = 1;
// From this one on the scheduler brings programs together that share memory (IpcOpen).
inline constexpr uint16_t kMinorIpc = 4;
// From this one on programs of one home share host memory (ArenaShared).
inline constexpr uint16_t kMinorSharedArena = 5;
// From this one on the scheduler holds a process to its own limit (Hello).
inline constexpr uint16_t kMinorOwnLimit = 5;
// From this one on the scheduler places runs on GPUs (RunBegin, Welcome).
inline constexpr uint16_t kMinorPlacement = 6;
inline constexpr uint32_t kMagic = 0x6873766e;  // "nvsh"

inline constexpr size_t kMaxMessage = 512;
inline constexpr size_t kNameLength = 64;
// Requests for memory that a program has under way at most. Those for pinned memory can wait.
inline constexpr size_t kMostRequests = 64;

enum class Type : uint16_t {
  // From programs.
  Hello = 1,           // REGISTER: a process begins to use a GPU
  RunBegin = 2,        // `nvshare run`: a tenant, as long as this connection and its processes last
  RequestGrant = 3,    // REQ_LOCK
  Released = 4,        // LOCK_RELEASED
  MemoryRequest = 5,   // MEM_UPDATE: may I allocate this much more?
  MemoryFreed = 6,     // MEM_UPDATE: this much less
  MemoryMoved = 7,     // what of a SwapOut or SwapIn is done
  Look = 8,            // how much memory may I have? instead of a Hello, and it makes no client
  MemoryPinned = 9,    // this much could move, and cannot any more
  ArenaReturned = 10,  // so much host memory is given back, after an ArenaNeed
  ArenaKept = 11,      // so much it has from a scheduler before this one
  ArenaMissing = 12,   // so much of what it was given it does not have
  IpcExports = 13,     // the name by which IPC handles of this process call it
  IpcOpen = 14,        // bring me to the owner of this memory; instead of a Hello
  IpcPiece = 15,       // from program to program: a chunk of shared memory, with its descriptor
  ArenaTaken = 16,     // these slabs of an ArenaShared are mapped
  ArenaPassed = 17,    // these slabs are free: another program may have them
  ArenaClosed = 18,    // these slabs are not mapped any more
  // From the scheduler.
  Welcome = 64,          // with the descriptor of the shared page, to a Hello
  Refused = 65,          // the last word: the connection is closed behind it
  Grant = 66,            // LOCK_OK
  Drop = 67,             // DROP_LOCK
  MemoryAvailable = 68,  // MEM_AVAILABLE: you may
  MemoryWait = 69,       // WAIT_FOR_MEM: you may, but it is not on the GPU before you run again
  MemoryRefused = 70,    // you may not
  SwapOut = 71,          // PREPARE_SWAP_OUT
  SwapIn = 72,
  Limits = 73,     // UPDATE_LIMIT, UPDATE_CORE_LIMIT
  Mode = 74,       // whether the client is metered
  Arena = 75,      // with the descriptor of host memory to swap out to
  View = 76,       // to a Look; the connection is closed behind it
  ArenaNeed = 77,  // how much of the host memory it needs: the rest may go back
  Shortage = 78,   // to `nvshare run`: one of its programs was refused memory
  IpcWanted = 79,  // with a socket: the program at its other end asks for shared memory
  IpcPeer = 80,    // to an IpcOpen, with a socket to the owner; the connection is closed behind it
  ArenaShared = 81,  // with the descriptor of host memory that programs of one home share
  ArenaYours = 82,   // these slabs of it are the program's
  ArenaClose = 83,   // these slabs of it go: unmap them
};

struct Header {
  uint16_t type;
  uint16_t size;  // of the whole message
  uint32_t reserved;
};

// How a program's GPU work is watched.
enum class Watch : uint32_t {
  Free,     // nobody else is there and no limit binds: no markers, no bound on work in flight
  Metered,  // its GPU time is counted, its work in flight bounded, and it gives back when idle
};

// What a program does while the scheduler is away.
enum class WhenLost : uint32_t { Run, Wait };

// What becomes of memory that the program allocates.
enum class Backend : uint32_t {
  Default,  // as configured
  Native,   // the driver's own: counted, and never moved
  Swap,     // moves to the host and back
  Managed,  // unified memory
};

struct Hello {
  static constexpr Type kType = Type::Hello;
  Header header;
  uint32_t magic;
  uint16_t major;
  uint16_t minor;
  uint8_t gpu[16];      // UUID of the device
  uint64_t gpu_memory;  // its total, for a scheduler without NVML
  // Not 0 when it comes back after the scheduler was away: all it has, what of that can never leave
  // the GPU, and what is on the GPU.
  uint64_t allocated;
  uint64_t pinned;
  uint64_t resident;
  uint64_t memory_limit;  // of this process, beside its tenant's; 0: none
  char program[kNameLength];
};

// Of a RunBegin; those that are not known are passed over. A Welcome has those that were taken.
inline constexpr uint32_t kOversubscribeSelf = 1;  // its programs may have more than their GPU
// Its memory limit is NVSHARE_GPU_MEMORY_LIMIT, and not --mem. It asks for no more than the levels
// above allow, because the variable can only lower a limit.
inline constexpr uint32_t kMemoryOfVariable = 2;
// The run had a tenant at a scheduler before this one. Its limits may be above those of the levels
// around it, which hold all the same, because a refusal would leave its programs without a run.
inline constexpr uint32_t kComesBack = 4;

// GPUs that a run names or is placed on, at most.
inline constexpr size_t kMostRunGpus = 16;
using GpuUuid = uint8_t[16];

// What a run says of its GPUs.
enum class GpuChoice : uint32_t {
  None,    // nothing: its programs see every GPU, or what the person who runs it has chosen
  Auto,    // the scheduler chooses
  Chosen,  // these, by the person who runs it
  Kept,    // these, by a scheduler before this one
};

struct RunBegin {
  static constexpr Type kType = Type::RunBegin;
  static constexpr size_t kLeast = 104;  // as it was before minor version 6
  Header header;
  uint32_t magic;
  uint16_t major;
  uint16_t minor;
  char name[kNameLength];
  uint64_t memory_limit;  // 0: none
  int32_t core_limit;     // 1..100
  int32_t priority;
  Backend backend;
  uint32_t flags;
  GpuChoice choice;
  uint16_t gpus_wanted;  // with Auto
  uint16_t gpu_count;    // of `gpus`
  // With Auto: those that the run can see, and one of them is chosen; none: it can see all.
  GpuUuid gpus[kMostRunGpus];
};

// A question of a process that may never use a GPU (nvidia-smi).
struct Look {
  static constexpr Type kType = Type::Look;
  Header header;
  uint32_t magic;
  uint16_t major;
  uint16_t minor;
  uint8_t gpu[16];  // UUID of the device
};

struct RequestGrant {
  static constexpr Type kType = Type::RequestGrant;
  Header header;
};

struct Released {
  static constexpr Type kType = Type::Released;
  Header header;
  uint64_t grant;  // which one
  uint64_t used;   // nanoseconds of GPU time since it was given
  uint32_t more_work;
  uint32_t gaps;  // microseconds between the first of it and the last in which nothing was there
};

// Answered with the same `request`: MemoryAvailable, MemoryWait or MemoryRefused; what is not
// movable, after MemoryWait, once more.
struct MemoryRequest {
  static constexpr Type kType = Type::MemoryRequest;
  Header header;
  uint64_t request;
  uint64_t bytes;
  uint32_t movable;  // not 0: it can leave the GPU
  uint32_t reserved;
};

struct MemoryFreed {
  static constexpr Type kType = Type::MemoryFreed;
  Header header;
  uint64_t bytes;
  uint64_t resident;  // of them, on the GPU
  uint64_t pinned;    // of those, never to leave it
};

// Memory that was asked for as movable, and is on the GPU, has become the other kind: somebody else
// got hold of it. Nothing else changes. When it is freed it is `pinned`.
struct MemoryPinned {
  static constexpr Type kType = Type::MemoryPinned;
  Header header;
  uint64_t bytes;
};

// How much has gone out and come in since the last such message; several may follow an order.
struct MemoryMoved {
  static constexpr Type kType = Type::MemoryMoved;
  Header header;
  uint64_t order;    // of the SwapOut or SwapIn; 0: of its own accord
  uint64_t out;      // bytes that have left the GPU
  uint64_t in;       // bytes that have come to it
  uint64_t copied;   // of both, over the link: neither unchanged nor empty
  uint64_t took;     // nanoseconds
  uint32_t done;     // the order is over, also when not all of it could be moved
  uint32_t no_room;  // the driver had no memory where the scheduler had promised some
};

// To a Hello with the page's descriptor, to a RunBegin without.
struct Welcome {
  static constexpr Type kType = Type::Welcome;
  static constexpr size_t kLeast = 104;  // as it was before minor version 6
  Header header;
  uint32_t magic;
  uint16_t major;
  uint16_t minor;
  uint64_t client;  // or the tenant, to a RunBegin
  char tenant[kNameLength];
  Watch watch;
  WhenLost when_lost;
  Backend backend;  // never Default
  uint32_t flags;   // to a RunBegin
  // To a RunBegin: the GPUs for it, in order. None: it was not placed.
  uint32_t gpu_count;
  uint32_t reserved;
  GpuUuid gpus[kMostRunGpus];
  char placement[96];  // why these, as far as there is room
};

// Of a Refused: the scheduler will never take this process, so waiting is of no use. Without the
// flag the process asks again, because a place may become free.
inline constexpr uint32_t kRefusedForGood = 1;
// Of a Refused to a RunBegin: the run's name is taken, and another name may be free.
inline constexpr uint32_t kRefusedName = 2;

struct Refused {
  static constexpr Type kType = Type::Refused;
  Header header;
  uint16_t major;
  uint16_t minor;
  uint32_t flags;  // 0 before minor version 8
  char reason[160];
};

struct Grant {
  static constexpr Type kType = Type::Grant;
  Header header;
  uint64_t grant;   // ever larger
  uint64_t budget;  // nanoseconds of GPU time after which the client releases by itself; 0: none
};

struct Drop {
  static constexpr Type kType = Type::Drop;
  Header header;
  uint64_t grant;
};

struct MemoryAvailable {
  static constexpr Type kType = Type::MemoryAvailable;
  Header header;
  uint64_t request;
};

// The bytes are counted, and there is no room for them now: whoever holds a grant gives it back
// before it lets the program have the memory, and the next grant comes when all of it is on the
// GPU. What cannot move is not the program's before another answer to the same request says so.
struct MemoryWait {
  static constexpr Type kType = Type::MemoryWait;
  Header header;
  uint64_t request;
  uint64_t missing;
};

struct MemoryRefused {
  static constexpr Type kType = Type::MemoryRefused;
  Header header;
  uint64_t request;
  uint64_t allowed;  // how much would have been given
};

// Sent only to a client that holds no grant. Whole chunks move, so out goes up to a chunk more than
// asked for, and in comes up to a chunk less, unless it is all that is missing.
struct SwapOut {
  static constexpr Type kType = Type::SwapOut;
  Header header;
  uint64_t order;  // ever larger, of both kinds together
  uint64_t bytes;
};

struct SwapIn {
  static constexpr Type kType = Type::SwapIn;
  Header header;
  uint64_t order;
  uint64_t bytes;
};

// With a descriptor: host memory for what is swapped out, beside what was given before.
struct Arena {
  static constexpr Type kType = Type::Arena;
  Header header;
  uint64_t bytes;
};

// So much host memory is enough from now on. What it has beyond that, and holds nothing that is not
// on the GPU, it gives back, sooner or later; until the next of these it never has less. Who does
// not know this keeps all.
struct ArenaNeed {
  static constexpr Type kType = Type::ArenaNeed;
  Header header;
  uint64_t bytes;
};

// At most what an ArenaNeed asked for. The bytes are free when this is said.
struct ArenaReturned {
  static constexpr Type kType = Type::ArenaReturned;
  Header header;
  uint64_t bytes;
};

// Once, right behind the hello of a program that comes back: all the host memory that it has.
struct ArenaKept {
  static constexpr Type kType = Type::ArenaKept;
  Header header;
  uint64_t bytes;
};

// Of what it was given: the descriptor did not arrive, or the memory could not be mapped. It is
// free when this is said. A scheduler of before minor version 2 passes it over.
struct ArenaMissing {
  static constexpr Type kType = Type::ArenaMissing;
  Header header;
  uint64_t bytes;
};

// Host memory that several programs have mapped and pinned at the same time changes hands by a
// message alone, in slabs. A program uses only the slabs that are its own. Each slab is a bit; the
// last slab of a segment may be shorter.
inline constexpr uint64_t kSlabBytes = uint64_t{16} << 20;
inline constexpr uint64_t kMostSlabs = 64;  // of a segment

// With a descriptor. The program maps and pins the slabs that are `there`, and answers ArenaTaken.
// Of these, `owned` are its own already. A program that could not map a slab of its own says
// ArenaPassed, too.
struct ArenaShared {
  static constexpr Type kType = Type::ArenaShared;
  Header header;
  uint64_t segment;  // its name on this connection, never 0
  uint64_t bytes;
  uint64_t owned;
  uint64_t there;
};

// Slabs of one segment.
template <Type kOf>
struct SlabMessage {
  static constexpr Type kType = kOf;
  Header header;
  uint64_t segment;
  uint64_t slabs;
  uint64_t missing;  // of ArenaPassed; not 0: they could not be mapped
};

using ArenaTaken = SlabMessage<Type::ArenaTaken>;
// After an ArenaNeed, at most what that asked for; or slabs that could not be mapped.
using ArenaPassed = SlabMessage<Type::ArenaPassed>;
using ArenaClosed = SlabMessage<Type::ArenaClosed>;
using ArenaYours = SlabMessage<Type::ArenaYours>;
// Never of slabs that are the program's own. Answered with ArenaClosed.
using ArenaClose = SlabMessage<Type::ArenaClose>;

// Something in the page's limits changed.
struct Limits {
  static constexpr Type kType = Type::Limits;
  Header header;
  uint64_t memory_limit;  // 0: none
  int32_t core_limit;
  int32_t priority;
};

// What the tenant of whoever looked may have on that GPU, and what its processes have there.
struct View {
  static constexpr Type kType = Type::View;
  Header header;
  uint64_t memory_limit;  // 0: none
  uint64_t allocated;
};

struct Mode {
  static constexpr Type kType = Type::Mode;
  Header header;
  Watch watch;
  uint32_t reserved;
};

// For the person who runs the program, who sees its framework's error only. Sent before the program
// is told, and not again before the memory limit has changed. A `nvshare run` of before minor
// version 3 passes it over.
struct Shortage {
  static constexpr Type kType = Type::Shortage;
  static constexpr size_t kLeast = 296;  // as it was before minor version 7
  Header header;
  uint64_t asked;
  uint64_t used;   // by all of the tenant, on that GPU
  uint64_t limit;  // the tenant's own; 0: it has none, or that of a level above it is tighter
  uint64_t gpu;    // all that it has; 0: the tenant may have more than that
  char reason[256];
  uint64_t level_used;      // by all of the level above with the tightest limit, on that GPU
  uint64_t level_limit;     // 0: the tenant's own limit is tighter
  char level[kNameLength];  // the name of that level
};

// The name of a process in its IPC handles: chosen at random by the process, kept until its end,
// and told on each of its connections before the first handle of it is given out.
inline constexpr size_t kIpcNameLength = 16;

struct IpcExports {
  static constexpr Type kType = Type::IpcExports;
  Header header;
  uint8_t name[kIpcNameLength];
};

// What an IPC handle says. Only the owner knows whether the secret is right.
struct IpcMemory {
  uint64_t address;  // in the owner
  uint64_t secret;
};

struct IpcOpen {
  static constexpr Type kType = Type::IpcOpen;
  Header header;
  uint32_t magic;
  uint16_t major;
  uint16_t minor;
  uint8_t owner[kIpcNameLength];
  IpcMemory memory;
};

struct IpcWanted {
  static constexpr Type kType = Type::IpcWanted;
  Header header;
  IpcMemory memory;
};

enum class IpcResult : uint32_t {
  Found,    // with the socket
  Unknown,  // no program of the asker's user and container has this name
  Busy,     // the owner has not read what it was sent before
};

struct IpcPeer {
  static constexpr Type kType = Type::IpcPeer;
  Header header;
  IpcResult result;
  uint32_t again;  // not 0: the owner may come back, as the scheduler has just started
};

// Over the socket of an IpcWanted, one for each chunk, in order. The chunks are equal but for the
// last, which may be smaller. Without a descriptor: there is no such memory.
struct IpcPiece {
  static constexpr Type kType = Type::IpcPiece;
  Header header;
  uint32_t index;
  uint32_t count;   // of chunks; 0: there is no such memory
  uint64_t bytes;   // of this chunk
  uint64_t offset;  // of the memory in the first chunk
  uint64_t length;  // of the memory
  uint8_t gpu[16];  // UUID of its device
};

// A zeroed message with its header filled in.
template <typename Message>
Message make() {
  Message message{};
  message.header.type = static_cast<uint16_t>(Message::kType);
  message.header.size = sizeof(Message);
  static_assert(sizeof(Message) <= kMaxMessage && alignof(Message) <= 8);
  return message;
}

// How long a packet of this type is at least; 0 for a type that is not known. A message to which a
// minor version has appended fields says how long it was before (kLeast).
size_t size_of(Type type);

template <typename Message>
constexpr size_t least_size() {
  if constexpr (requires { Message::kLeast; }) {
    return Message::kLeast;
  } else {
    return sizeof(Message);
  }
}

// A packet as it was received: its header when it is a whole message, of a known type or not;
// nullptr when it lies about its length or is too short for its type.
const Header* look_at(const void* packet, size_t length);

// The message, when the (looked at) header is of its type.
template <typename Message>
const Message* as(const Header* header) {
  if (header == nullptr || header->type != static_cast<uint16_t>(Message::kType)) return nullptr;
  return reinterpret_cast<const Message*>(header);
}

// A copy of a message with kLeast, with zeros for the fields that an older end has not sent. Behind
// as() these fields may not be there.
template <typename Message>
Message whole(const Message& message) {
  Message copy = make<Message>();
  const size_t sent = message.header.size;
  __builtin_memcpy(&copy, &message, sent < sizeof copy ? sent : sizeof copy);
  copy.header.size = sizeof copy;
  return copy;
}

// Text of a fixed field: as much as fits, zeros behind it.
void put_text(char* field, size_t size, const char* text);
// How long the text in a field is, at most `size`.
size_t text_length(const char* field, size_t size);

}  // namespace nvshare::wire
