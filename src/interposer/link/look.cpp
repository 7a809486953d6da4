#include "interposer/link/look.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/guest/fork.h"
#include "interposer/link/scheduler_socket.h"
#include "interposer/link/state.h"
#include "wire/channel.h"

namespace nvshare::interposer::link {
namespace {

// Programs look many times a second, and scripts at every step.
constexpr uint64_t kFresh = 100'000'000;  // nanoseconds
// Whoever is there and does not answer costs the program a moment each time.
constexpr uint64_t kLeaveAlone = 5'000'000'000;

struct Seen {
  CUuuid device;
  uint64_t at;  // 0: never
  MemoryView view;
};

struct Looks {
  Mutex mutex;  // never held while somebody is asked
  Seen seen[kMaxDevices] GUARDED_BY(mutex);
  uint64_t leave_alone_until GUARDED_BY(mutex);
};
constinit Looks g_looks{};

// Whose place the device's view is in, or the oldest.
Seen& place_of(const CUuuid& device) REQUIRES(g_looks.mutex) {
  Seen* oldest = &g_looks.seen[0];
  for (Seen& one : g_looks.seen) {
    if (one.at != 0 && is_same(one.device, device)) return one;
    if (one.at < oldest->at) oldest = &one;
  }
  return *oldest;
}

bool recall(const CUuuid& device, uint64_t now, MemoryView& view) {
  const Lock lock(g_looks.mutex);
  if (now < g_looks.leave_alone_until) {
    view = {};
    return true;
  }
  const Seen& seen = place_of(device);
  if (seen.at == 0 || !is_same(seen.device, device) || now - seen.at > kFresh) return false;
  view = seen.view;
  return true;
}

// Whether a scheduler that is there answered; without one there is no limit.
bool ask(const CUuuid& device, MemoryView& view) {
  const int socket = connect_to_scheduler();
  if (socket < 0) return socket != -EAGAIN;
  auto look = wire::make<wire::Look>();
  look.magic = wire::kMagic;
  look.major = wire::kMajor;
  look.minor = wire::kMinor;
  memcpy(look.gpu, device.bytes, sizeof look.gpu);
  alignas(8) char buffer[wire::kMaxMessage];
  const wire::View* answer = nullptr;
  if (wire::send(socket, &look.header, true) == 0) {
    answer = wire::as<wire::View>(first_answer(socket, buffer, nullptr));
  }
  if (answer != nullptr) view = {answer->memory_limit, answer->allocated};
  // Not libc's, in which a thread may be cancelled.
  syscall(SYS_close, socket);
  return answer != nullptr;
}

MemoryView tenants_view(const CUuuid& device) {
  MemoryView view;
  if (recall(device, now_ns(), view)) return view;
  handle_forks();
  const bool answered = ask(device, view);
  const uint64_t now = now_ns();
  const Lock lock(g_looks.mutex);
  if (!answered) g_looks.leave_alone_until = now + kLeaveAlone;
  place_of(device) = {device, now, view};
  return view;
}

}  // namespace

MemoryView look_at_memory(const CUuuid& device, uint64_t device_memory) {
  if (gate::Gate* gate = gate_in_use(device)) return memory_view(*gate);
  const KeepErrno keep;
  MemoryView view = tenants_view(device);
  const uint64_t own = own_limit(device_memory);
  if (own != 0 && (view.limit == 0 || own < view.limit)) view.limit = own;
  return view;
}

MemoryView look_at_memory(CUdevice device) {
  CUuuid uuid;
  size_t total = 0;
  if (!uuid_of(device, uuid) ||
      real<FunctionId::cuDeviceTotalMem_v2>(&total, device) != CUDA_SUCCESS) {
    return {};
  }
  return look_at_memory(uuid, total);
}

void forget_looks_after_fork() {
  g_looks.mutex.reset_after_fork();
}

}  // namespace nvshare::interposer::link
