#include "interposer/link/scheduler_socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interposer/guest/sys.h"
#include "wire/channel.h"

namespace nvshare::interposer::link {
namespace {

constexpr int kTimeout = 1;  // seconds

}  // namespace

bool socket_path(char (&path)[108]) {
  const char* folder = getenv(wire::kRunDirectoryVariable);
  if (folder == nullptr || *folder == 0) folder = wire::kSystemRunDirectory;
  const size_t length = strlen(folder);
  const size_t name = strlen(wire::kProgramSocket);
  if (length + 1 + name + 1 > sizeof path) return false;
  memcpy(path, folder, length);
  path[length] = '/';
  memcpy(path + length + 1, wire::kProgramSocket, name + 1);
  return true;
}

int connect_to_scheduler() {
  char path[108];
  if (!socket_path(path)) return -ENAMETOOLONG;
  const int socket = wire::connect_to(path, kTimeout);
  // A program that has too many files open cannot try. Without the socket's file there is no
  // scheduler.
  const bool too_many = socket == -EMFILE || socket == -ENFILE;
  return too_many && access(path, F_OK) != 0 && errno == ENOENT ? -ENOENT : socket;
}

const wire::Header* first_answer(int socket, char (&buffer)[wire::kMaxMessage], int* fd,
                                 int* error) {
  int length = wire::receive(socket, buffer, true, fd);
  // Who is refused before the message was read finds that first, and then the reason.
  if (length == -ECONNRESET) length = wire::receive(socket, buffer, true, fd);
  if (error != nullptr) *error = length < 0 ? -length : 0;
  const wire::Header* header =
      length > 0 ? wire::look_at(buffer, static_cast<size_t>(length)) : nullptr;
  if (const auto* refused = wire::as<wire::Refused>(header)) {
    log("the scheduler refused us: %.*s", static_cast<int>(sizeof refused->reason),
        refused->reason);
  }
  return header;
}

}  // namespace nvshare::interposer::link
