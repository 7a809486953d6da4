// Programs that share memory (CUDA IPC) are brought together: the scheduler makes a pair of sockets
// and hands one end to each. The memory's descriptors go from program to program over that pair, so
// the scheduler never has one, waits for nobody, and remembers no request.

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string>

#include "daemon/serve/programs.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

// What an owner may have unread when it is asked for memory. The rest of its queue is for grants: a
// client that cannot be sent one is disconnected, and another program could bring that about.
constexpr int kMostUnread = 32 * 1024;

// Programs of one user in one container, or of one user in none.
std::string ipc_home(const Processes& processes, const Peer& peer) {
  const auto levels = processes.tenants_of(peer.pid, peer.uid);
  return levels ? fmt::format("{}/{}", peer.uid, levels->back().name) : "";
}

}  // namespace

void ProgramServer::ipc_exports(Session& session, const wire::IpcExports& message) {
  if (session.ipc) return;  // a process has one name
  session.ipc = IpcOwner{std::to_array(message.name), ipc_home(processes_, session.peer)};
}

// A name alone opens nothing: whoever has seen a handle could claim the name in it, and would only
// be found by programs of its own user and container.
ProgramServer::Session* ProgramServer::ipc_owner(const IpcName& name, const std::string& home) {
  if (home.empty()) return nullptr;
  for (auto& [id, session] : sessions_) {
    if (session.doomed || !session.ipc || session.ipc->name != name) continue;
    if (session.ipc->home == home) return &session;
  }
  return nullptr;
}

bool ProgramServer::ipc_connect(Session& owner, Session& asker, const wire::IpcMemory& memory) {
  int unread = 0;
  if (ioctl(owner.socket.get(), SIOCOUTQ, &unread) < 0 || unread > kMostUnread) return false;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return false;
  const UniqueFd to_asker(pair[0]);
  const UniqueFd to_owner(pair[1]);
  auto wanted = wire::make<wire::IpcWanted>();
  wanted.memory = memory;
  if (wire::send(owner.socket.get(), &wanted.header, false, to_asker.get()) < 0) return false;
  auto peer = wire::make<wire::IpcPeer>();
  peer.result = wire::IpcResult::Found;
  (void)wire::send(asker.socket.get(), &peer.header, false, to_owner.get());
  return true;
}

// An asker is no client, and makes no tenant.
void ProgramServer::ipc_open(Session& session, const wire::IpcOpen& message) {
  if (const auto spoken = check_version(message.magic, message.major); !spoken) {
    return refuse(session, spoken.error().message);
  }
  Session* owner = ipc_owner(std::to_array(message.owner), ipc_home(processes_, session.peer));
  if (owner == nullptr || !ipc_connect(*owner, session, message.memory)) {
    auto peer = wire::make<wire::IpcPeer>();
    peer.result = owner == nullptr ? wire::IpcResult::Unknown : wire::IpcResult::Busy;
    peer.again = owner != nullptr || reactor_.now() - started_ < kAllAreBack ? 1 : 0;
    (void)wire::send(session.socket.get(), &peer.header, false);
  }
  doom(session);
}

}  // namespace nvshare::daemon
