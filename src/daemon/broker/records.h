#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "base/uuid.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/memory_account.h"
#include "wire/messages.h"
#include "wire/page.h"

// What the scheduler keeps about those it serves, beside what the core knows.
namespace nvshare::daemon {

using core::ClientId;
using core::GpuId;
using core::TenantId;

enum class TenantKind { Run, Container, User, Pod, Cgroup };
std::string_view name_of(TenantKind kind);

// A text field of a message, as far as it is printable.
std::string printable(const char* field, std::size_t size);

// What limits are given to: how it is called and where it comes from.
struct TenantName {
  TenantKind kind = TenantKind::User;
  std::string name;
  std::uint32_t uid = 0;
};

// How a tenant stood, for what it has had since.
struct ShareSample {
  Time at{};
  Duration used{};    // GPU time
  Duration wanted{};  // the time in which it had work
  int gpus = 1;       // on which it has programs, at least one
};

// What has been moved between GPU and host, ever.
struct Moves {
  Bytes out{};
  Bytes in{};
  Bytes copied{};  // of both; the rest was unchanged or empty
  Duration took{};

  Moves& operator+=(const Moves& more) {
    out += more.out;
    in += more.in;
    copied += more.copied;
    took += more.took;
    return *this;
  }
  friend bool operator==(const Moves&, const Moves&) = default;
};

// Requests for memory that were refused.
struct Refusals {
  std::uint64_t count = 0;
  std::string last;       // why
  bool for_host = false;  // the last one: for want of host memory
};

// Where a run was put.
struct RunPlacement {
  std::vector<GpuId> gpus;  // in its programs' order; none: nowhere in particular
  std::string why;
  bool awaited = false;  // its first client has not come: the run counts as a program there
};

struct TenantRecord {
  TenantId id;
  TenantName is;
  core::Limits limits;
  wire::Backend backend = wire::Backend::Default;  // of its programs; Default: as configured
  bool oversubscribes = false;                     // its programs may be larger than their GPU
  RunPlacement placed;
  std::map<GpuId, int> lent;  // priority, by a lease that a program of it holds there
  Moves moves;
  std::uint64_t refused = 0;   // requests for memory, of all its programs and parts ever
  bool shortage_told = false;  // its run knows that memory was refused, under the present limit
  bool paused = false;
  bool open = false;               // its run is still connected
  bool occupied = false;           // its run is not, and processes are left in the run's cgroup
  bool kept = false;               // somebody has set its limits: they are not forgotten
  std::optional<TenantId> parent;  // none: at the top
  std::set<TenantId> parts;
  std::set<ClientId> clients;  // not those of its parts
  Time since{};
  Time empty_since{};
  int wanting = 0;                  // clients that have work to do, also of its parts
  Time wanting_since{};             // while there are any
  Duration wanted{};                // before that
  Duration debt{};                  // on the GPU where it has most of it
  std::deque<ShareSample> samples;  // of the last seconds, at least one
  std::optional<double> share_percent;
};

// One grant, as long as it is held.
struct HeldGrant {
  std::uint64_t number = 0;
  Time since{};
  Duration read{};    // what the client's meter said last
  Duration billed{};  // of that, after what overlapped with others was shared out
};

// A question for memory that cannot move, which waits for room.
struct WaitingRequest {
  std::uint64_t number = 0;
  Bytes bytes{};
};

// Host memory that was handed over.
struct GivenArena {
  Time at{};
  Bytes bytes{};
};

// A client's host memory (Places).
struct ArenaRecord {
  Bytes given{};
  Bytes made{};                        // with what is being made for it
  std::deque<GivenArena> handed_over;  // of late
  // What the core was told last: being made or not ready yet, and ready. None: nothing, so that it
  // takes it for as much as is needed.
  Bytes coming{};
  std::optional<Bytes> ready;
  // What it claimed in its hello to have; nothing once it has said how much that really is.
  std::optional<Bytes> claimed;
  Bytes brought{};                 // of given, by its own word: from a scheduler before this one
  std::optional<Bytes> told;       // how much of it is enough, as it was told last
  Bytes returnable{};              // what it may give back, as it was told at some time
  std::optional<Time> idle_since;  // it has had more than it needs
  // It did not have some of what it was given: so long it is given none, that is until then; and
  // whether it has been given a piece since, to see.
  Duration wait{};
  Time again{};
  bool tried = false;
};

// A client's turns (Grants).
struct TurnRecord {
  wire::Watch watch = wire::Watch::Metered;
  std::optional<HeldGrant> grant;
  bool wants = false;
  Duration used_before{};  // in earlier grants
};

struct ClientRecord {
  ClientId id;
  TenantId tenant;
  GpuId gpu;
  int pid = 0;
  std::uint32_t uid = 0;
  std::string home;  // of Peer
  std::string program;
  std::uint16_t minor = 0;  // version of the protocol that it speaks
  wire::Page* page = nullptr;
  wire::Backend backend = wire::Backend::Native;
  bool asleep = false;          // with its tenant, as the core said last
  bool slept = false;           // at some time
  std::uint64_t messages = 0;   // that it has sent
  core::MemoryAccount memory;   // all that it has on the GPU
  bool oversubscribes = false;  // it may have more than the GPU
  bool has_own_limit = false;   // NVSHARE_GPU_MEMORY_LIMIT
  std::deque<WaitingRequest> waiting;
  Moves moves;
  Refusals refusals;
  ArenaRecord arena;
  TurnRecord turn;
};

// What is used of a GPU's memory beside what its clients have, with so many of them.
struct Overhead {
  Bytes bytes{};
  int clients = 0;
  bool at_most = false;  // some of it may be memory of clients that are not back yet
  Bytes found{};         // by a client that found no room lately
};

// The time that NVML's utilisation is about, up to its reading.
inline constexpr Duration kMeasuredOver = 1s;

struct GpuRecord {
  GpuId id;
  Uuid uuid{};
  std::string name;
  Bytes total{};
  std::set<ClientId> clients;
  std::set<ClientId> holders;  // of a grant
  std::set<ClientId> doubted;  // clients of which not every claim is believed yet
  Moves moves;
  Time read_at{};  // when the meters were last read
  // Measured from outside, where that is possible.
  std::optional<int> utilisation;  // percent of the time before `measured_at`
  Time measured_at{};
  bool overlap = false;
  std::optional<Bytes> memory_used;
  std::optional<Bytes> overhead;
  // What it must have been when a client found no room where some was expected.
  Bytes overhead_found{};
  Time overhead_found_at{};
};

}  // namespace nvshare::daemon
