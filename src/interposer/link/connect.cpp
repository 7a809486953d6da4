// How a link comes to its connection: hello, welcome, and why there is none.
//
// A scheduler that refuses the program does not make the program free. The gate stays closed and
// allocations wait, until the scheduler takes the program or is gone.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interposer/gate/records.h"
#include "interposer/link/saying.h"
#include "interposer/link/scheduler_socket.h"
#include "interposer/link/state.h"
#include "interposer/moving/swap/swap.h"
#include "wire/channel.h"

namespace nvshare::interposer::link {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1'000'000'000;

// A scheduler that dies closes connections, too. One that still accepts connections after this time
// refuses the program.
constexpr uint64_t kMayBeDying = kSecond;
constexpr uint64_t kBetweenTries = 50 * kMillisecond;
// A scheduler that refused the program and then does not answer is taken for busy for this time.
constexpr uint64_t kMayBeBusy = 5 * kSecond;
// In nanoseconds. The scheduler closes a connection that says no hello within 5 s. Behind a longer
// drain than this the link connects anew. Near 5 s the hello comes too late; near 0 every hello
// costs two connections. Guarded by RefusedProgram.IsNotOneWhoseWorkTakesLong.
constexpr uint64_t kMostDrain = 2 * kSecond;
constexpr const char* kWhatToDo = " (see `nvshare doctor`, or run it without nvshare)";

enum class Answer {
  Welcome,
  NoScheduler,  // nobody listens
  Silence,      // somebody listens, and does not answer in time
  Closed,       // the connection was closed without a word
  Refused,
  RefusedForGood,
};

struct Reply {
  Answer answer = Answer::NoScheduler;
  char why[256] = {};  // of a refusal, as the program says it
};

Reply reply_of(Answer answer) {
  Reply reply;
  reply.answer = answer;
  return reply;
}

__attribute__((format(printf, 2, 3))) Reply refusal(Answer answer, const char* why, ...) {
  Reply reply = reply_of(answer);
  va_list arguments;
  va_start(arguments, why);
  vsnprintf(reply.why, sizeof reply.why, why, arguments);
  va_end(arguments);
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
  return refusal(Answer::RefusedForGood,
                 "its libnvshare.so speaks protocol %d.%d and the scheduler %d.%d: install one "
                 "version of both",
                 int{wire::kMajor}, int{wire::kMinor}, int{major}, int{minor});
}

Reply refused_by(const wire::Refused& refused) {
  if (refused.major != wire::kMajor) return of_other_protocol(refused.major, refused.minor);
  const bool for_good = (refused.flags & wire::kRefusedForGood) != 0;
  const size_t length = wire::text_length(refused.reason, sizeof refused.reason);
  return refusal(for_good ? Answer::RefusedForGood : Answer::Refused,
                 "the scheduler refuses it: %.*s%s", static_cast<int>(length), refused.reason,
                 for_good ? kWhatToDo : "");
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
      reply = refusal(Answer::Refused,
                      "the scheduler's page did not arrive: are too many files open? (close some, "
                      "or raise `ulimit -n`)");
    }
  } else if (const auto* refused = wire::as<wire::Refused>(header)) {
    reply = refused_by(*refused);
  }
  if (page >= 0) close(page);
  return reply;
}

// Why there is no connection at all.
Reply without_socket(int error) {
  char path[108] = {};
  socket_path(path);
  switch (error) {
    case EACCES:
    case EPERM:
      return refusal(Answer::Refused,
                     "the scheduler refuses it: this program may not open %s (ask its owner to "
                     "allow it, or run it without nvshare)",
                     path);
    case EMFILE:
      return refusal(Answer::Refused,
                     "it has too many files open to connect to the scheduler (close some, or raise "
                     "`ulimit -n`)");
    case ENFILE:
      return refusal(
          Answer::Refused,
          "too many files are open on this machine to connect to the scheduler (end some "
          "programs, or raise `sysctl fs.file-max`)");
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
  // The beats of the last connection say nothing of this one. Else the first beat that equals an
  // old one ends the connection, and the program runs without limits.
  link.thread.alive = 0;
  tell_of_arena(link);
  ipc_announce_again(link);
  open_gate(link, gate::kClosed);
}

// Before the program says hello again nothing of it may be on the GPU.
void leave_gpu(Link& link) {
  if (link.made) {
    gate::close_gate(link.gate);
    drain(link);
  }
  moving::swap::swap_forget_shared(link.gate);
}

Reply say_hello(Link& link, int socket) {
  Lock lock(link.mutex);
  const auto hello = hello_of(link);
  // A scheduler that refuses before it has read the hello has said so all the same.
  wire::send(socket, &hello.header, true);
  const Reply reply = take_answer(link, socket);
  if (reply.answer == Answer::Welcome) begin_connection(link, socket);
  return reply;
}

// Connects before the drain, because without a scheduler no work is held back. Leaves the gate
// closed where there is one, because a refused program must not run between two questions.
Reply ask_once(Link& link) {
  int socket = connect_to_scheduler();
  if (socket < 0) return without_socket(-socket);
  const uint64_t begin = now_ns();
  leave_gpu(link);
  if (now_ns() - begin > kMostDrain) {
    close(socket);
    socket = connect_to_scheduler();
  }
  const Reply reply = socket >= 0 ? say_hello(link, socket) : without_socket(-socket);
  if (reply.answer != Answer::Welcome && socket >= 0) close(socket);
  return reply;
}

Reply ask_scheduler(Link& link) {
  uint64_t closed_at = 0;  // the first time
  for (;;) {
    const Reply reply = ask_once(link);
    if (reply.answer != Answer::Closed) return reply;
    const uint64_t now = now_ns();
    if (closed_at == 0) closed_at = now;
    if (is_refused(link) || now - closed_at >= kMayBeDying || gate::stopped_looking()) {
      return refusal(Answer::Refused,
                     "the scheduler refuses it: it closes the connection without a word (see the "
                     "scheduler's log)");
    }
    sleep_ns(kBetweenTries);
  }
}

// --- without a connection ------------------------------------------------------------------------

// One for all links, because mostly they are refused for the same reason.
constinit Saying g_saying;

void say_why(const Link& link, const Reply& reply) {
  if (gate::stopped_looking()) return;  // the process ends, and waits for nothing
  if (!g_saying.is_due(now_ns())) return;
  const bool waits = reply.answer == Answer::Refused || gate::has_context(link.gate);
  warn("this program %s, because %s", waits ? "waits for the GPU" : "gets no GPU", reply.why);
}

void be_refused(Link& link, const Reply& reply) {
  {
    Lock lock(link.mutex);
    link.connection.absence =
        reply.answer == Answer::Refused ? Absence::Refused : Absence::RefusedForGood;
    link.work.free = false;
  }
  gate::close_gate(link.gate);
  link.thread.refused_at = now_ns();
  say_why(link, reply);
}

// The gate stands again as it did before the hello.
void be_without_scheduler(Link& link, uint32_t gate_before) {
  Lock lock(link.mutex);
  link.connection.absence = Absence::NoScheduler;
  link.work.free = gate_before == gate::kFree;
  open_gate(link, gate_before);
}

// Saying hello costs a program that runs a moment: not too often when nobody answers.
uint64_t more_patience(uint64_t patience) {
  return patience < kMostPatientLook ? 2 * patience + kSecond : kMostPatientLook;
}

}  // namespace

bool is_refused(const Link& link) {
  if (link.phase != Phase::Unmanaged) return false;
  const Absence absence = link.connection.absence.load();
  return absence == Absence::Refused || absence == Absence::RefusedForGood;
}

bool is_asking(const Link& link) {
  // Work in flight may need the thread that allocates, and the hello comes after that work. A
  // larger number keeps such a program longer from going on.
  constexpr uint64_t kMost = 10'000'000'000;
  return link.phase == Phase::Unmanaged && link.connection.absence.load() == Absence::Asking &&
         now_ns() - link.connection.lost_at.load() < kMost && !gate::stopped_looking();
}

void be_without_thread(Link& link) {
  {
    Lock lock(link.mutex);
    if (link.connection.socket >= 0) close(link.connection.socket);
    link.connection.socket = -1;
    link.connection.page = nullptr;
    link.phase = Phase::Unmanaged;
  }
  be_refused(link, refusal(Answer::RefusedForGood,
                           "it cannot start another thread (end some, or raise `ulimit -u`)"));
}

bool connect_link(Link& link) {
  const uint32_t gate_before = link.gate.state.load();
  const Reply reply = ask_scheduler(link);
  const uint64_t patience = link.thread.look_again;
  link.thread.look_again = kLookForScheduler;
  if (reply.answer == Answer::Welcome) {
    g_saying.welcome();
    return true;
  }
  if (reply.answer == Answer::Silence) {
    if (is_refused(link) && now_ns() - link.thread.refused_at < kMayBeBusy) return false;
    link.thread.look_again = more_patience(patience);
  } else if (reply.answer != Answer::NoScheduler) {
    be_refused(link, reply);
    return false;
  }
  be_without_scheduler(link, gate_before);
  return false;
}

}  // namespace nvshare::interposer::link
