#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "wire/messages.h"
#include "wire/page.h"

namespace nvshare::integration {

// A scheduler that does what a test tells it: gives and takes back the GPU at its word. Speaks the
// wire protocol on `directory`/scheduler.sock in a thread of its own; every allocation is allowed.
class FakeScheduler {
 public:
  explicit FakeScheduler(const std::string& directory);
  ~FakeScheduler();
  FakeScheduler(const FakeScheduler&) = delete;
  FakeScheduler& operator=(const FakeScheduler&) = delete;

  // How so many hellos to come are answered; the others are welcome.
  enum class Greeting { Refuse, RefuseForGood, OtherProtocol, Close, Silence };
  void turn_away(Greeting how, std::uint64_t hellos = kAll);
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  void welcome_all() { turn_away(Greeting::Refuse, 0); }
  // How many hellos were not welcome.
  std::uint64_t turned_away();

  // What becomes of the memory of those who connect from now on.
  void backend(wire::Backend which);
  // The minor version of the protocol in every welcome from now on.
  void speak(std::uint16_t minor);
  // Whether there is no room now for memory that can move.
  void full(bool is);
  // Whether requests for memory that cannot move are left waiting, until this is over.
  void keep_waiting(bool is);
  // Waits until so many do; false when not by then.
  bool wait_for_requests(std::size_t least, Duration limit = 20s);
  // Orders everybody's memory to be moved, and waits until that is over. The clients hold no grant.
  struct Moved {
    bool done = false;  // within the limit
    std::uint64_t out = 0;
    std::uint64_t in = 0;
  };
  Moved order_out(std::uint64_t bytes, Duration limit = 20s) { return order(true, bytes, limit); }
  Moved order_in(std::uint64_t bytes, Duration limit = 20s) { return order(false, bytes, limit); }

  // Gives every client host memory, and answers how much that was; how much of what they were given
  // they have said to miss.
  std::uint64_t give_arena(int descriptor, std::uint64_t bytes);
  std::uint64_t told_missing();
  // How often a process has said its name in IPC handles.
  std::uint64_t told_names();

  // Lends every client so much more, for memory that never leaves the GPU, and takes back what is
  // left of it.
  void lend(std::uint64_t bytes);
  void revoke();
  // The tenant's limit, as clients see it, and what they see as allocated while they have no
  // credit.
  void show(std::uint64_t limit, std::uint64_t allocated);

  // How clients are watched from now on.
  void watch(wire::Watch how);
  // From now on whoever asks for a grant gets one; those who wait get theirs.
  void open();
  // Nobody gets a grant any more. Takes back those that are held; true when all of them have been
  // released within the limit.
  bool close(Duration limit = 20s);

  // From now on nobody finds its socket, as if it had ended; or everybody does again.
  void hide(bool hidden);
  // The sign of life in the page of everybody who connects from now on. It never changes there.
  void beat(std::uint64_t alive);
  // How many hellos were welcome.
  std::uint64_t welcomed();
  // Breaks off with all clients, and waits until so many have come back.
  bool reconnect(std::size_t least, Duration limit = 20s);

  // How many clients have asked for a grant and got none yet, and how many hold one.
  std::size_t waiting();
  std::size_t holding();
  // Waits until there are so many clients, or so many that wait; false when not by then.
  bool wait_for_clients(std::size_t least, Duration limit = 20s);
  bool wait_for_waiting(std::size_t least, Duration limit = 20s);
  // How many messages about memory have come.
  std::uint64_t told_of_memory();
  // How often a driver was said to have no memory where some was promised.
  std::uint64_t told_no_room();
  // How many grants were given back, and the GPU time that was reported with them, in nanoseconds.
  std::uint64_t returned();
  std::uint64_t used();
  // Messages that a scheduler would have refused; empty when all was well.
  std::string complaints();
  // Bytes that programs have said they hold; of these, those that can never leave the GPU, and
  // those that are on it.
  std::uint64_t allocated();
  std::uint64_t pinned();
  std::uint64_t resident();

 private:
  struct Client {
    int socket = -1;
    bool welcome = false;
    bool wants = false;
    bool left = false;
    std::uint64_t grant = 0;  // held; 0: none
    std::uint64_t allocated = 0;
    std::uint64_t pinned = 0;
    std::uint64_t resident = 0;
    std::vector<wire::MemoryRequest> kept;  // waiting
    std::uint64_t order = 0;                // not over yet; 0: none
    std::uint64_t lent = 0;                 // of which so much was left when it was last looked at
    wire::Page* page = nullptr;
  };

  void serve();
  void accept_one();
  // False when the client is gone.
  bool hear(Client& client);
  void answer(Client& client, const wire::Header* header);
  void greet(Client& client);
  static void refuse(Client& client, std::uint16_t major, std::uint32_t flags = 0);
  void give(Client& client);
  void take(Client& client, const wire::MemoryRequest& request);
  void take(Client& client, const wire::MemoryFreed& freed);
  void take(Client& client, const wire::MemoryMoved& moved);
  static void give_memory(Client& client, const wire::MemoryRequest& request);
  static void settle(Client& client, std::uint64_t left);
  Moved order(bool out, std::uint64_t bytes, Duration limit);
  std::uint64_t sum(std::uint64_t Client::*what);
  void complain(const std::string& what);
  void drop_client(Client& client);
  std::size_t count(bool Client::*what) const;

  const std::string path_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Client>> clients_;
  wire::Backend backend_ = wire::Backend::Native;
  wire::Watch watch_ = wire::Watch::Metered;
  Greeting greeting_ = Greeting::Refuse;
  std::uint64_t unwelcome_ = 0;  // so many hellos to come
  std::uint64_t turned_away_ = 0;
  std::uint64_t welcomed_ = 0;
  std::uint64_t alive_ = 0;
  bool full_ = false;
  bool keeps_waiting_ = false;
  bool open_ = true;
  bool end_ = false;
  std::uint64_t next_grant_ = 1;
  std::uint64_t last_order_ = 0;
  std::uint64_t told_of_memory_ = 0;
  std::uint64_t told_no_room_ = 0;
  std::uint64_t returned_ = 0;
  std::uint64_t used_ = 0;
  std::uint64_t told_missing_ = 0;
  std::uint64_t told_names_ = 0;
  std::uint16_t minor_ = wire::kMinor;
  Moved moved_;  // since the last order was given
  std::string complaints_;
  std::thread thread_;
};

}  // namespace nvshare::integration
