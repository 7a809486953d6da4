#include "integration/fake_scheduler.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "wire/channel.h"

namespace nvshare::integration {

using namespace nvshare::wire;

FakeScheduler::FakeScheduler(const std::string& directory)
    : path_(directory + "/" + kProgramSocket), listener_(listen_at(path_.c_str(), 0600)) {
  if (listener_ < 0 || ::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) {
    complaints_ = "cannot listen in " + directory;
    return;
  }
  thread_ = std::thread([this] { serve(); });
}

FakeScheduler::~FakeScheduler() {
  {
    const std::lock_guard hold(lock_);
    end_ = true;
  }
  if (thread_.joinable()) {
    (void)!::write(wake_[1], "x", 1);
    thread_.join();
  }
  for (const auto& client : clients_) drop_client(*client);
  for (const int fd : {listener_, wake_[0], wake_[1]}) {
    if (fd >= 0) ::close(fd);
  }
}

void FakeScheduler::serve() {
  while (true) {
    std::vector<pollfd> watched{{listener_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    {
      const std::lock_guard hold(lock_);
      if (end_) return;
      for (const auto& client : clients_) watched.push_back({client->socket, POLLIN, 0});
    }
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    const std::lock_guard hold(lock_);
    if ((watched[0].revents & POLLIN) != 0) accept_one();
    std::erase_if(clients_, [&](const std::unique_ptr<Client>& client) {
      const auto found = std::find_if(watched.begin(), watched.end(), [&](const pollfd& one) {
        return one.fd == client->socket && one.revents != 0;
      });
      if (found == watched.end() || hear(*client)) return false;
      drop_client(*client);
      return true;
    });
    changed_.notify_all();
  }
}

void FakeScheduler::accept_one() {
  const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) return;
  clients_.push_back(std::make_unique<Client>());
  clients_.back()->socket = socket;
}

void FakeScheduler::drop_client(Client& client) {
  ::close(client.socket);
  if (client.page != nullptr) ::munmap(client.page, kPageSize);
}

bool FakeScheduler::hear(Client& client) {
  if (client.left) return false;
  alignas(8) char packet[kMaxMessage];
  const int length = receive(client.socket, packet, false);
  if (length <= 0) return length == -EAGAIN;
  const Header* header = look_at(packet, static_cast<std::size_t>(length));
  if (header == nullptr) return complain("a packet that is no message"), false;
  answer(client, header);
  return true;
}

void FakeScheduler::complain(const std::string& what) {
  complaints_ += what + "\n";
}

void FakeScheduler::answer(Client& client, const Header* header) {
  if (as<Hello>(header) != nullptr) {
    if (client.welcome) complain("a second hello");
    client.allocated = as<Hello>(header)->allocated;
    client.pinned = as<Hello>(header)->pinned;
    client.resident = as<Hello>(header)->resident;
    return greet(client);
  }
  if (!client.welcome) return complain("a message before the hello");
  settle(client, client.page->pinned_credit.bytes.load());
  if (as<RequestGrant>(header) != nullptr) {
    if (client.grant != 0 || client.wants) complain("a grant asked for twice");
    client.wants = true;
    if (open_) give(client);
  } else if (const Released* released = as<Released>(header)) {
    if (released->grant != client.grant) complain("released what it did not hold");
    client.grant = 0;
    ++returned_;
    used_ += released->used;
    client.page->scheduler.grant.store(0);
    client.wants = released->more_work != 0;
    if (open_ && client.wants) give(client);
  } else if (const MemoryRequest* request = as<MemoryRequest>(header)) {
    ++told_of_memory_;
    take(client, *request);
  } else if (const MemoryFreed* freed = as<MemoryFreed>(header)) {
    ++told_of_memory_;
    take(client, *freed);
  } else if (const MemoryPinned* pinned = as<MemoryPinned>(header)) {
    ++told_of_memory_;
    client.pinned += pinned->bytes;
  } else if (const MemoryMoved* moved = as<MemoryMoved>(header)) {
    take(client, *moved);
  } else if (as<IpcExports>(header) != nullptr) {
    ++told_names_;
  } else if (const ArenaMissing* missing = as<ArenaMissing>(header)) {
    told_missing_ += missing->bytes;
  }
}

void FakeScheduler::give_memory(Client& client, const MemoryRequest& request) {
  if (request.movable == 0) client.pinned += request.bytes;
  client.resident += request.bytes;
  auto reply = make<MemoryAvailable>();
  reply.request = request.request;
  send(client.socket, &reply.header, false);
}

void FakeScheduler::take(Client& client, const MemoryRequest& request) {
  client.allocated += request.bytes;
  if (!(request.movable != 0 ? full_ : keeps_waiting_)) return give_memory(client, request);
  auto reply = make<MemoryWait>();
  reply.request = request.request;
  reply.missing = client.allocated - client.resident;
  send(client.socket, &reply.header, false);
  if (request.movable == 0) client.kept.push_back(request);
}

void FakeScheduler::take(Client& client, const MemoryFreed& freed) {
  const bool sound = freed.bytes <= client.allocated && freed.resident <= client.resident &&
                     freed.pinned <= client.pinned;
  if (!sound) return complain("more freed than allocated");
  client.allocated -= freed.bytes;
  client.resident -= freed.resident;
  client.pinned -= freed.pinned;
}

void FakeScheduler::take(Client& client, const MemoryMoved& moved) {
  if (moved.order != client.order) return complain("moved without an order");
  if (moved.out > client.resident) return complain("more moved out than there was");
  client.resident += moved.in - moved.out;
  if (client.resident > client.allocated) complain("more moved in than is allocated");
  moved_.out += moved.out;
  moved_.in += moved.in;
  if (moved.done != 0) client.order = 0;
  if (moved.no_room != 0) ++told_no_room_;
}

void FakeScheduler::refuse(Client& client, std::uint16_t major, std::uint32_t flags) {
  auto message = make<Refused>();
  message.major = major;
  message.minor = 0;
  message.flags = flags;
  put_text(message.reason, sizeof message.reason, "there is no place for you");
  send(client.socket, &message.header, false);
}

void FakeScheduler::greet(Client& client) {
  if (unwelcome_ > 0) {
    --unwelcome_;
    ++turned_away_;
    if (greeting_ == Greeting::Silence) return;
    client.left = true;
    if (greeting_ == Greeting::Refuse) refuse(client, kMajor);
    if (greeting_ == Greeting::RefuseForGood) refuse(client, kMajor, kRefusedForGood);
    if (greeting_ == Greeting::OtherProtocol) refuse(client, kMajor + 1);
    ::shutdown(client.socket, SHUT_RDWR);
    return;
  }
  const int page = ::memfd_create("nvshare-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (page < 0 || ::ftruncate(page, kPageSize) != 0) return complain("no memory for a page");
  ::fcntl(page, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* mapped = ::mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
  client.page = static_cast<Page*>(mapped);
  client.page->magic = kPageMagic;
  client.page->version = 1;
  client.page->scheduler.watch.store(static_cast<std::uint64_t>(watch_));
  client.page->scheduler.core_limit.store(100);
  client.page->scheduler.alive.store(alive_);
  auto welcome = make<Welcome>();
  welcome.magic = kMagic;
  welcome.major = kMajor;
  welcome.minor = minor_;
  welcome.client = next_grant_++;
  put_text(welcome.tenant, sizeof welcome.tenant, "test");
  welcome.watch = watch_;
  welcome.when_lost = WhenLost::Run;
  welcome.backend = backend_;
  send(client.socket, &welcome.header, true, page);
  ::close(page);
  client.welcome = true;
  ++welcomed_;
}

void FakeScheduler::give(Client& client) {
  auto grant = make<Grant>();
  grant.grant = next_grant_++;
  client.grant = grant.grant;
  client.wants = false;
  client.page->scheduler.grant.store(grant.grant);
  send(client.socket, &grant.header, false);
}

void FakeScheduler::turn_away(Greeting how, std::uint64_t hellos) {
  const std::lock_guard hold(lock_);
  greeting_ = how;
  unwelcome_ = hellos;
}

std::uint64_t FakeScheduler::turned_away() {
  const std::lock_guard hold(lock_);
  return turned_away_;
}

void FakeScheduler::speak(std::uint16_t minor) {
  const std::lock_guard hold(lock_);
  minor_ = minor;
}

std::uint64_t FakeScheduler::told_names() {
  const std::lock_guard hold(lock_);
  return told_names_;
}

void FakeScheduler::backend(Backend which) {
  const std::lock_guard hold(lock_);
  backend_ = which;
}

void FakeScheduler::full(bool is) {
  const std::lock_guard hold(lock_);
  full_ = is;
}

void FakeScheduler::keep_waiting(bool is) {
  const std::lock_guard hold(lock_);
  keeps_waiting_ = is;
  if (is) return;
  for (const auto& client : clients_) {
    for (const MemoryRequest& request : std::exchange(client->kept, {})) {
      give_memory(*client, request);
    }
  }
}

bool FakeScheduler::wait_for_requests(std::size_t least, Duration limit) {
  std::unique_lock hold(lock_);
  return changed_.wait_for(hold, limit, [&] {
    std::size_t kept = 0;
    for (const auto& client : clients_) kept += client->kept.size();
    return kept >= least;
  });
}

FakeScheduler::Moved FakeScheduler::order(bool out, std::uint64_t bytes, Duration limit) {
  std::unique_lock hold(lock_);
  moved_ = {};
  for (const auto& client : clients_) {
    if (!client->welcome) continue;
    client->order = ++last_order_;
    auto go_out = make<SwapOut>();
    auto come_in = make<SwapIn>();
    go_out.order = come_in.order = client->order;
    go_out.bytes = come_in.bytes = bytes;
    send(client->socket, out ? &go_out.header : &come_in.header, false);
  }
  moved_.done = changed_.wait_for(hold, limit, [&] {
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const auto& client) { return client->order == 0; });
  });
  return moved_;
}

std::uint64_t FakeScheduler::give_arena(int descriptor, std::uint64_t bytes) {
  const std::lock_guard hold(lock_);
  auto arena = make<Arena>();
  arena.bytes = bytes;
  std::uint64_t given = 0;
  for (const auto& client : clients_) {
    if (!client->welcome) continue;
    send(client->socket, &arena.header, false, descriptor);
    given += bytes;
  }
  return given;
}

std::uint64_t FakeScheduler::told_missing() {
  const std::lock_guard hold(lock_);
  return told_missing_;
}

void FakeScheduler::lend(std::uint64_t bytes) {
  const std::lock_guard hold(lock_);
  for (const auto& client : clients_) {
    if (!client->welcome) continue;
    client->lent += bytes;
    hand_out(client->page->pinned_credit, bytes, 2 * bytes);
  }
}

// What is not left of it has been allocated; where more is left, that has been freed.
void FakeScheduler::settle(Client& client, std::uint64_t left) {
  const std::uint64_t taken = client.lent - left;
  client.lent = left;
  client.allocated += taken;
  client.pinned += taken;
  client.resident += taken;
}

void FakeScheduler::revoke() {
  const std::lock_guard hold(lock_);
  for (const auto& client : clients_) {
    if (!client->welcome) continue;
    settle(*client, wire::revoke(client->page->pinned_credit));
    client->lent = 0;
  }
}

void FakeScheduler::show(std::uint64_t limit, std::uint64_t allocated) {
  const std::lock_guard hold(lock_);
  for (const auto& client : clients_) {
    if (!client->welcome) continue;
    client->page->scheduler.memory_limit = limit;
    client->page->scheduler.tenant_allocated = allocated;
  }
}

void FakeScheduler::watch(Watch how) {
  const std::lock_guard hold(lock_);
  watch_ = how;
  for (const auto& client : clients_) {
    if (!client->welcome) continue;
    client->page->scheduler.watch.store(static_cast<std::uint64_t>(how));
    auto mode = make<Mode>();
    mode.watch = how;
    send(client->socket, &mode.header, false);
  }
}

void FakeScheduler::open() {
  const std::lock_guard hold(lock_);
  open_ = true;
  for (const auto& client : clients_) {
    if (client->wants) give(*client);
  }
}

bool FakeScheduler::close(Duration limit) {
  std::unique_lock hold(lock_);
  open_ = false;
  for (const auto& client : clients_) {
    if (client->grant == 0) continue;
    auto drop = make<Drop>();
    drop.grant = client->grant;
    send(client->socket, &drop.header, false);
  }
  return changed_.wait_for(hold, limit, [&] {
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const auto& client) { return client->grant == 0; });
  });
}

void FakeScheduler::hide(bool hidden) {
  const std::string aside = path_ + ".hidden";
  (void)::rename((hidden ? path_ : aside).c_str(), (hidden ? aside : path_).c_str());
}

void FakeScheduler::beat(std::uint64_t alive) {
  const std::lock_guard hold(lock_);
  alive_ = alive;
}

std::uint64_t FakeScheduler::welcomed() {
  const std::lock_guard hold(lock_);
  return welcomed_;
}

bool FakeScheduler::reconnect(std::size_t least, Duration limit) {
  {
    const std::lock_guard hold(lock_);
    // The thread that serves them finds them gone, whatever they have said meanwhile.
    for (const auto& client : clients_) {
      client->left = true;
      client->welcome = false;
      ::shutdown(client->socket, SHUT_RDWR);
    }
  }
  return wait_for_clients(least, limit);
}

std::size_t FakeScheduler::count(bool Client::*what) const {
  return static_cast<std::size_t>(std::count_if(
      clients_.begin(), clients_.end(), [&](const auto& client) { return (*client).*what; }));
}

std::size_t FakeScheduler::waiting() {
  const std::lock_guard hold(lock_);
  return count(&Client::wants);
}

std::size_t FakeScheduler::holding() {
  const std::lock_guard hold(lock_);
  return static_cast<std::size_t>(std::count_if(
      clients_.begin(), clients_.end(), [](const auto& client) { return client->grant != 0; }));
}

bool FakeScheduler::wait_for_clients(std::size_t least, Duration limit) {
  std::unique_lock hold(lock_);
  return changed_.wait_for(hold, limit, [&] { return count(&Client::welcome) >= least; });
}

bool FakeScheduler::wait_for_waiting(std::size_t least, Duration limit) {
  std::unique_lock hold(lock_);
  return changed_.wait_for(hold, limit, [&] { return count(&Client::wants) >= least; });
}

std::uint64_t FakeScheduler::told_of_memory() {
  const std::lock_guard hold(lock_);
  return told_of_memory_;
}

std::uint64_t FakeScheduler::told_no_room() {
  const std::lock_guard hold(lock_);
  return told_no_room_;
}

std::uint64_t FakeScheduler::returned() {
  const std::lock_guard hold(lock_);
  return returned_;
}

std::uint64_t FakeScheduler::used() {
  const std::lock_guard hold(lock_);
  return used_;
}

std::string FakeScheduler::complaints() {
  const std::lock_guard hold(lock_);
  return complaints_;
}

std::uint64_t FakeScheduler::sum(std::uint64_t Client::*what) {
  const std::lock_guard hold(lock_);
  std::uint64_t sum = 0;
  for (const auto& client : clients_) sum += (*client).*what;
  return sum;
}

std::uint64_t FakeScheduler::allocated() {
  return sum(&Client::allocated);
}

std::uint64_t FakeScheduler::pinned() {
  return sum(&Client::pinned);
}

std::uint64_t FakeScheduler::resident() {
  return sum(&Client::resident);
}

}  // namespace nvshare::integration
