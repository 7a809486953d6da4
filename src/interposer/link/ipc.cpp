#include "interposer/link/ipc.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "interposer/guest/fork.h"
#include "interposer/link/scheduler_socket.h"
#include "interposer/link/state.h"
#include "wire/channel.h"

namespace nvshare::interposer::link {
namespace {

using Name = uint8_t[wire::kIpcNameLength];

constexpr uint64_t kAskAgain = 20'000'000;
// An owner's name and a question for it go over two connections, and may cross.
constexpr uint64_t kMayCross = 200'000'000;

struct Self {
  Mutex mutex;
  bool named GUARDED_BY(mutex);
  Name name GUARDED_BY(mutex);
};
constinit Self g_self{};

// Not libc's, in which a thread may be cancelled.
void close_socket(int socket) {
  syscall(SYS_close, socket);
}

bool own_name(Name& name) {
  const Lock lock(g_self.mutex);
  if (!g_self.named) g_self.named = random_bytes(g_self.name, sizeof g_self.name);
  memcpy(name, g_self.name, sizeof name);
  return g_self.named;
}

bool has_name(Name& name) {
  const Lock lock(g_self.mutex);
  memcpy(name, g_self.name, sizeof name);
  return g_self.named;
}

void tell_name(Link& link, const Name& name) REQUIRES(link.mutex) {
  if (link.phase == Phase::Unmanaged || link.told.ipc || link.told.minor < wire::kMinorIpc) return;
  auto message = wire::make<wire::IpcExports>();
  memcpy(message.name, name, sizeof message.name);
  tell(link, message.header);
  link.told.ipc = true;
}

struct Reached {
  int socket = -1;
  bool again = false;   // the owner may be found later
  bool silent = false;  // the scheduler has said nothing
};

Reached ask_scheduler(const Name& owner, const wire::IpcMemory& memory) {
  const int socket = connect_to_scheduler();
  if (socket < 0) return {-1, true};
  auto open = wire::make<wire::IpcOpen>();
  open.magic = wire::kMagic;
  open.major = wire::kMajor;
  open.minor = wire::kMinor;
  memcpy(open.owner, owner, sizeof open.owner);
  open.memory = memory;
  alignas(8) char buffer[wire::kMaxMessage];
  int peer_socket = -1;
  const wire::IpcPeer* peer = nullptr;
  if (wire::send(socket, &open.header, true) == 0) {
    peer = wire::as<wire::IpcPeer>(first_answer(socket, buffer, &peer_socket));
  }
  close_socket(socket);
  if (peer != nullptr && peer->result == wire::IpcResult::Found) return {peer_socket, true};
  if (peer_socket >= 0) close_socket(peer_socket);
  return {-1, peer != nullptr && peer->again != 0, peer == nullptr};
}

}  // namespace

bool random_bytes(void* to, size_t bytes) {
  return syscall(SYS_getrandom, to, bytes, 0) == static_cast<long>(bytes);
}

bool ipc_announce(gate::Gate& gate, Name& name) {
  const KeepErrno keep;
  Link& link = *gate.link;
  if (!own_name(name)) return false;
  const Lock lock(link.mutex);
  tell_name(link, name);
  return link.told.minor >= wire::kMinorIpc;
}

bool ipc_is_own(const Name& name) {
  Name own;
  return has_name(own) && memcmp(own, name, sizeof own) == 0;
}

void ipc_announce_again(Link& link) {
  link.told.ipc = false;
  Name name;
  if (has_name(name)) tell_name(link, name);
}

int ipc_reach(const Name& owner, const wire::IpcMemory& memory, uint64_t deadline) {
  const KeepErrno keep;
  handle_forks();
  const uint64_t begin = now_ns();
  for (int silences = 0;;) {
    const Reached reached = ask_scheduler(owner, memory);
    if (reached.socket >= 0) {
      const timeval limit{static_cast<time_t>(kIpcPatience / 1'000'000'000), 0};
      setsockopt(reached.socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      return reached.socket;
    }
    // One that has just ended is followed by another; one of before protocol 1.4 never answers.
    silences += reached.silent ? 1 : 0;
    const uint64_t now = now_ns();
    if (silences > 1 || now >= deadline || (!reached.again && now - begin > kMayCross)) return -1;
    sleep_ns(kAskAgain);
  }
}

void forget_ipc_after_fork() {
  g_self.mutex.reset_after_fork();
  g_self.named = false;
}

}  // namespace nvshare::interposer::link
