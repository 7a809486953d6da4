#include "cli/run/tenant_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "wire/channel.h"

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kAnswersWithin = 5s;

Joined accepted_by(const wire::Welcome& welcome) {
  Joined joined;
  joined.accepted = true;
  joined.waits_when_lost = welcome.when_lost == wire::WhenLost::Wait;
  joined.flags = welcome.flags;
  const size_t count = std::min<size_t>(welcome.gpu_count, wire::kMostRunGpus);
  for (size_t i = 0; i < count; ++i) joined.gpus.push_back(std::to_array(welcome.gpus[i]));
  return joined;
}

Result<Joined> joined_by(const wire::Header* header) {
  if (const auto* welcome = wire::as<wire::Welcome>(header)) {
    return accepted_by(wire::whole(*welcome));
  }
  const auto* refused = wire::as<wire::Refused>(header);
  if (refused == nullptr) return Error{"the scheduler's answer makes no sense"};
  Joined joined;
  joined.refusal.assign(refused->reason,
                        wire::text_length(refused->reason, sizeof refused->reason));
  joined.other_version = refused->major != wire::kMajor;
  joined.name_taken = (refused->flags & wire::kRefusedName) != 0;
  return joined;
}

// As wire::receive. A scheduler that closed before it had read everything has the first call fail;
// what it said before is there all the same.
int receive(int connection, void* packet) {
  const int length = wire::receive(connection, packet, false);
  return length == -ECONNRESET ? wire::receive(connection, packet, false) : length;
}

}  // namespace

void ask_for_run(int connection, const std::string& name, const LimitWish& wish,
                 wire::Backend backend, uint32_t flags, const GpuRequest& gpus) {
  auto begin = wire::make<wire::RunBegin>();
  begin.magic = wire::kMagic;
  begin.major = wire::kMajor;
  begin.minor = wire::kMinor;
  wire::put_text(begin.name, sizeof begin.name, name.c_str());
  begin.memory_limit = wish.memory ? static_cast<uint64_t>(wish.memory->count) : 0;
  begin.core_limit = wish.cores.value_or(100);
  begin.priority = wish.priority.value_or(0);
  begin.backend = backend;
  begin.flags = flags | (wish.memory_of_variable ? wire::kMemoryOfVariable : 0);
  begin.choice = gpus.choice;
  begin.gpus_wanted = static_cast<uint16_t>(gpus.wanted);
  for (const Uuid& uuid : gpus.gpus) {
    if (begin.gpu_count == wire::kMostRunGpus) break;
    std::memcpy(begin.gpus[begin.gpu_count++], uuid.data(), uuid.size());
  }
  // A scheduler that says why before it closes may have done so already: read on in any case.
  wire::send(connection, &begin.header, false);
}

std::optional<Result<Joined>> read_answer(int connection) {
  for (;;) {
    alignas(8) char packet[wire::kMaxMessage];
    const int length = receive(connection, packet);
    if (length == -EAGAIN) return std::nullopt;
    if (length == 0 || length == -ECONNRESET) {
      Joined joined;
      joined.refusal = "the scheduler closed the connection";
      joined.closed = true;
      return joined;
    }
    if (length < 0) return Error{fmt::format("the scheduler: {}", std::strerror(-length))};
    const auto* header = wire::look_at(packet, static_cast<size_t>(length));
    if (header == nullptr) return Error{"the scheduler's answer makes no sense"};
    // A type of a newer minor version is passed over.
    if (wire::size_of(static_cast<wire::Type>(header->type)) != 0) return joined_by(header);
  }
}

Result<Joined> begin_run(int connection, const std::string& name, const LimitWish& wish,
                         wire::Backend backend, uint32_t flags, const GpuRequest& gpus) {
  ask_for_run(connection, name, wish, backend, flags, gpus);
  const auto deadline = Clock::now() + kAnswersWithin;
  for (;;) {
    if (auto answer = read_answer(connection)) return std::move(*answer);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Error{"the scheduler does not answer"};
    pollfd waiting{connection, POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(left.count()));
  }
}

}  // namespace nvshare::cli
