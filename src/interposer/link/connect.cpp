// How a link comes to its connection: hello, welcome, and why there is none.
//
// A scheduler that refuses the program does not make the program free. The gate stays closed and
// allocations wait, until the scheduler takes the program or is gone.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interposer/gate/records.h"
#include "interposer/link/scheduler_socket.h"
#include "interposer/link/state.h"
#include "interposer/moving/swap/swap.h"
#include "wire/channel.h"

namespace nvshare::interposer::link {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1'000'000'000;

constexpr uint64_t kLookForScheduler = kSecond;
constexpr uint64_t kMostPatientLook = 16 * kSecond;  // for one that is there and does not answer
// A scheduler that dies closes connections, too. One that still accepts connections after this time
// refuses the program.
constexpr uint64_t kMayBeDying = kSecond;
constexpr uint64_t kBetweenTries = 50 * kMillisecond;
// A scheduler that refused the program and then does not answer is taken for busy for this time.
constexpr uint64_t kMayBeBusy = 5 * kSecond;

enum class Answer {
  Welcome,
  NoScheduler,  // nobody listens
  Silence,      // somebody listens, and does not answer in time
  Closed,       // the connection was closed without a word
  Refused,
  OtherProtocol,
};

struct Reply {
  Answer answer = Answer::NoScheduler;
  uint16_t major = 0;  // of the scheduler, where the protocol is another one
  uint16_t minor = 0;
  char reason[sizeof(wire::Refused::reason) + 1] = {};
};

Reply reply_of(Answer answer, const char* reason = "") {
  Reply reply;
  reply.answer = answer;
  strncpy(reply.reason, reason, sizeof reply.reason - 1);
  return reply;
}

// --- the answer ----------------------------------------------------------------------------------

// Puts the page where the last one was, so that nobody who looks at it ever finds a hole. Refuses
// one that could be cut off under us.
bool map_page(Link& link, int fd) {
  if (lseek(fd, 0, SEEK_END) < static_cast<off_t>(wire::kPageSize)) return false;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  void* old = link.connection.page_memory;
  void* memory = mmap(old, wire::kPageSize, PROT_READ | PROT_WRITE,
                      MAP_SHARED | (old != nullptr ? MAP_FIXED : 0), fd, 0);
  if (memory == MAP_FAILED) return false;
  madvise(memory, wire::kPageSize, MADV_DONTFORK);
  link.connection.page_memory = memory;
  auto* page = static_cast<wire::Page*>(memory);
  if (page->magic != wire::kPageMagic) return false;
  page->program.rounding = link.book.rounding.load();
  link.connection.page = page;
  return true;
}

wire::Hello hello_of(const Link& link) {
  auto hello = wire::make<wire::Hello>();
  hello.magic = wire::kMagic;
  hello.major = wire::kMajor;
  hello.minor = wire::kMinor;
  memcpy(hello.gpu, &link.device.uuid, sizeof hello.gpu);
  hello.gpu_memory = link.device.memory;
  hello.allocated = link.book.allocated.load();
  hello.pinned = link.book.pinned.load();
  hello.resident = hello.allocated - link.book.absent.load();
  hello.memory_limit = link.device.own_limit;
  wire::put_text(hello.program, sizeof hello.program, program_invocation_short_name);
  return hello;
}

// Whether everything of a welcome is there.
bool take_welcome(Link& link, const wire::Welcome& welcome, int page) REQUIRES(link.mutex) {
  if (welcome.magic != wire::kMagic || page < 0 || !map_page(link, page)) return false;
  link.grant.watch = welcome.watch;
  link.thread.when_lost = welcome.when_lost;
  link.book.backend = welcome.backend;
  link.told.minor = welcome.minor;
  log("connected as client %llu of %.*s", static_cast<unsigned long long>(welcome.client),
      static_cast<int>(sizeof welcome.tenant), welcome.tenant);
  return true;
}

Reply of_other_protocol(uint16_t major, uint16_t minor) {
  Reply reply = reply_of(Answer::OtherProtocol);
  reply.major = major;
  reply.minor = minor;
  return reply;
}

Reply refused_by(const wire::Refused& refused) {
  if (refused.major != wire::kMajor) return of_other_protocol(refused.major, refused.minor);
  Reply reply = reply_of(Answer::Refused);
  memcpy(reply.reason, refused.reason, wire::text_length(refused.reason, sizeof refused.reason));
  return reply;
}

// The scheduler's answer to a hello.
Reply take_answer(Link& link, int socket) REQUIRES(link.mutex) {
  alignas(8) char buffer[wire::kMaxMessage];
  int page = -1;
  int error = 0;
  const wire::Header* header = first_answer(socket, buffer, &page, &error);
  Reply reply = reply_of(error == EAGAIN ? Answer::Silence : Answer::Closed);
  if (const auto* welcome = wire::as<wire::Welcome>(header)) {
    if (welcome->major != wire::kMajor) {
      reply = of_other_protocol(welcome->major, welcome->minor);
    } else if (take_welcome(link, *welcome, page)) {
      reply = reply_of(Answer::Welcome);
    } else {
      reply = reply_of(Answer::Refused, "its page did not arrive (are too many files open?)");
    }
  } else if (const auto* refused = wire::as<wire::Refused>(header)) {
    reply = refused_by(*refused);
  }
  if (page >= 0) close(page);
  return reply;
}

// Why there is no connection at all.
Reply without_socket(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return reply_of(Answer::Refused, "this program may not open the scheduler's socket");
    case EMFILE:
    case ENFILE:
      return reply_of(Answer::Refused, "too many files are open to connect to the scheduler");
    case EAGAIN:
      return reply_of(Answer::Silence);
    default:
      return reply_of(Answer::NoScheduler);
  }
}

// --- coming back ---------------------------------------------------------------------------------

// Host memory of the scheduler before this one is still there, and all of it is kept until this one
// says how much is enough.
void tell_of_arena(Link& link) REQUIRES(link.mutex) {
  if (link.told.arena == 0) return;
  moving::swap::swap_arena_need(link.gate, ~uint64_t{0}, nullptr);
  auto message = wire::make<wire::ArenaKept>();
  message.bytes = link.told.arena;
  tell(link, message.header);
}

void begin_connection(Link& link, int socket) REQUIRES(link.mutex) {
  link.connection.socket = socket;
  link.connection.absence = Absence::NoScheduler;  // when it ends
  ++link.connection.number;
  link.phase = Phase::Idle;
  link.grant.number = link.grant.drop = 0;
  link.told.turned_pinned = false;
  link.grant.meter.begin(now_ns());
  link.grant.total_used = 0;
  link.thread.alone_at = link.thread.alone_wait = 0;
  tell_of_arena(link);
  ipc_announce_again(link);
  open_gate(link, gate::kClosed);
}

// Before it says hello again nothing of it may be on the GPU.
Reply come_back(Link& link, int socket) {
  const uint32_t before = link.gate.state.load();
  if (link.made) {
    gate::close_gate(link.gate);
    drain(link);
  }
  moving::swap::swap_forget_shared(link.gate);
  Lock lock(link.mutex);
  const auto hello = hello_of(link);
  // A scheduler that refuses before it has read the hello has said so all the same.
  wire::send(socket, &hello.header, true);
  const Reply reply = take_answer(link, socket);
  if (reply.answer == Answer::Welcome) {
    begin_connection(link, socket);
  } else {
    link.work.free = before == gate::kFree;
    open_gate(link, before);
  }
  return reply;
}

Reply ask_once(Link& link) {
  const int socket = connect_to_scheduler();
  if (socket < 0) return without_socket(-socket);
  const Reply reply = come_back(link, socket);
  if (reply.answer != Answer::Welcome) close(socket);
  return reply;
}

Reply ask_scheduler(Link& link) {
  const uint64_t begin = now_ns();
  for (;;) {
    const Reply reply = ask_once(link);
    if (reply.answer != Answer::Closed) return reply;
    if (is_refused(link) || now_ns() - begin >= kMayBeDying || gate::stopped_looking()) {
      return reply_of(Answer::Refused,
                      "it closes the connection without a word (see the scheduler's log)");
    }
    sleep_ns(kBetweenTries);
  }
}

// --- without a connection ------------------------------------------------------------------------

// When a line was written last; 0: none since the last welcome. One for all links, because all of
// them are refused for the same reasons.
std::atomic<uint64_t> g_said_at{0};

void say_why(const Link& link, const Reply& reply) {
  uint64_t never = 0;
  if (gate::stopped_looking()) return;  // the process ends, and waits for nothing
  if (!g_said_at.compare_exchange_strong(never, now_ns())) return;
  if (reply.answer == Answer::Refused) {
    return warn("this program waits for the GPU, because the scheduler refuses it: %s",
                reply.reason);
  }
  warn(
      "this program %s, because its libnvshare.so speaks protocol %d.%d and the scheduler %d.%d: "
      "install one version of both",
      was_welcome(link) ? "waits for the GPU" : "gets no GPU", int{wire::kMajor}, int{wire::kMinor},
      int{reply.major}, int{reply.minor});
}

// A program that is refused again soon says nothing twice.
void forget_saying() {
  constexpr uint64_t kSoon = 60 * kSecond;
  if (now_ns() - g_said_at.load() > kSoon) g_said_at = 0;
}

void be_refused(Link& link, const Reply& reply) {
  {
    Lock lock(link.mutex);
    link.connection.absence =
        reply.answer == Answer::Refused ? Absence::Refused : Absence::OtherProtocol;
    link.work.free = false;
  }
  gate::close_gate(link.gate);
  link.thread.refused_at = now_ns();
  say_why(link, reply);
}

void be_without_scheduler(Link& link) {
  Lock lock(link.mutex);
  link.connection.absence = Absence::NoScheduler;
}

// Saying hello costs a program that runs a moment: not too often when nobody answers.
uint64_t more_patience(uint64_t patience) {
  return patience < kMostPatientLook ? 2 * patience + kSecond : kMostPatientLook;
}

}  // namespace

bool is_refused(const Link& link) {
  return link.phase == Phase::Unmanaged && link.connection.absence.load() != Absence::NoScheduler;
}

bool was_welcome(const Link& link) {
  return link.connection.number.load() != 0;
}

bool connect_link(Link& link) {
  const Reply reply = ask_scheduler(link);
  const uint64_t patience = link.thread.look_again;
  link.thread.look_again = kLookForScheduler;
  switch (reply.answer) {
    case Answer::Welcome:
      forget_saying();
      return true;
    case Answer::Closed:
    case Answer::Refused:
    case Answer::OtherProtocol:
      be_refused(link, reply);
      return false;
    case Answer::Silence:
      if (is_refused(link) && now_ns() - link.thread.refused_at < kMayBeBusy) return false;
      link.thread.look_again = more_patience(patience);
      break;
    case Answer::NoScheduler:
      break;
  }
  be_without_scheduler(link);
  return false;
}

}  // namespace nvshare::interposer::link
