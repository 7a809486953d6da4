#include "interposer/memory/ipc_answer.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "interposer/catch/current.h"
#include "interposer/gate/records.h"
#include "interposer/link/ipc.h"
#include "interposer/link/link.h"
#include "interposer/moving/swap/share.h"
#include "wire/channel.h"

// The owner's side of shared memory: another process asks, and gets a descriptor for each chunk.
namespace nvshare::interposer::memory {
namespace {

struct Answer {
  std::atomic<bool> taken{false};
  std::atomic<int> socket{-1};
  wire::IpcMemory memory{};
};

// Beyond these an asker finds its socket closed, and asks again.
constexpr size_t kMostAnswers = 16;
constinit Answer g_answers[kMostAnswers];

// Not libc's, in which a thread may be cancelled.
void close_descriptor(int descriptor) {
  syscall(SYS_close, descriptor);
}

Answer* take_answer() {
  for (Answer& answer : g_answers) {
    if (!answer.taken.exchange(true)) return &answer;
  }
  return nullptr;
}

void give_answer(Answer& answer) {
  close_descriptor(answer.socket.exchange(-1));
  answer.taken = false;
}

// Whether there is more to send.
bool send_piece(const Answer& answer, uint32_t index) {
  moving::swap::SwapPiece piece;
  // At the end of the process the driver is not asked any more.
  if (!gate::stopped_looking())
    piece = moving::swap::swap_export(answer.memory.address, answer.memory.secret, index);
  auto message = wire::make<wire::IpcPiece>();
  CUuuid uuid{};
  if (piece.descriptor >= 0 && link::uuid_of(piece.device, uuid)) {
    message.index = index;
    message.count = piece.count;
    message.bytes = piece.bytes;
    message.offset = piece.offset;
    message.length = piece.length;
    memcpy(message.gpu, &uuid, sizeof message.gpu);
  }
  const bool sent = wire::send(answer.socket.load(), &message.header, true, piece.descriptor) == 0;
  if (piece.descriptor >= 0) close_descriptor(piece.descriptor);
  return sent && index + 1 < message.count;
}

void* answer_asker(void* argument) {
  Answer& answer = *static_cast<Answer*>(argument);
  {
    // An asker that does not read is given up.
    const timeval limit{static_cast<time_t>(link::kIpcPatience / 1'000'000'000), 0};
    setsockopt(answer.socket.load(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const catching::Relaxed relaxed;
    for (uint32_t index = 0; send_piece(answer, index);) ++index;
  }
  give_answer(answer);
  return nullptr;
}

}  // namespace

void ipc_answer(int socket, const wire::IpcMemory& memory) {
  Answer* answer = take_answer();
  if (answer == nullptr) return close_descriptor(socket);
  answer->socket = socket;
  answer->memory = memory;
  if (!start_thread(answer_asker, answer, "nvshare-ipc")) give_answer(*answer);
}

void forget_answers_after_fork() {
  for (Answer& answer : g_answers) {
    if (const int socket = answer.socket.exchange(-1); socket >= 0) close_descriptor(socket);
    answer.taken = false;
  }
}

}  // namespace nvshare::interposer::memory
