#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "cli/run/limits.h"
#include "wire/messages.h"

namespace nvshare::cli {

// What the scheduler said to a RunBegin.
struct Joined {
  bool accepted = false;
  std::string refusal;           // why not, in a line
  bool other_version = false;    // it was refused because the two do not understand each other
  bool name_taken = false;       // it was refused because of its name, and another may be free
  bool closed = false;           // it went without a word, as one does that is about to end
  bool waits_when_lost = false;  // its programs, while the scheduler is away
  uint32_t flags = 0;            // of those that were asked for, what it knows
  std::vector<Uuid> gpus{};      // on which the scheduler has placed it
};

// What the run says of its GPUs (wire::RunBegin).
struct GpuRequest {
  wire::GpuChoice choice = wire::GpuChoice::None;
  int wanted = 1;
  std::vector<Uuid> gpus{};  // at most wire::kMostRunGpus
};

// Asks for a tenant on a fresh connection to the program socket. The tenant lasts as long as the
// connection and the processes below this one. An error when no answer comes.
Result<Joined> begin_run(int connection, const std::string& name, const LimitWish& wish,
                         wire::Backend backend = wire::Backend::Default, uint32_t flags = 0,
                         const GpuRequest& gpus = {});

// The same in parts that never wait.
void ask_for_run(int connection, const std::string& name, const LimitWish& wish,
                 wire::Backend backend, uint32_t flags, const GpuRequest& gpus);
// Nothing where the scheduler has not answered yet.
std::optional<Result<Joined>> read_answer(int connection);

}  // namespace nvshare::cli
