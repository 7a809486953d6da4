#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "config/options.h"

namespace nvshare::cli {

// What the command line says of a tenant. What was not given is left as it is.
struct LimitWish {
  std::optional<Bytes> memory;
  bool lift_memory = false;  // "none"
  std::optional<int> cores;
  std::optional<int> priority;
  bool memory_of_variable = false;  // `memory` is NVSHARE_GPU_MEMORY_LIMIT, and not --mem

  bool empty() const { return !memory && !lift_memory && !cores && !priority; }
};

// --mem, --cores and --priority, as both `run` and `limit` have them.
std::vector<config::Option> limit_options();

// Reads and checks them; everything that is wrong is added to `wrong`, one entry each.
LimitWish read_limits(const config::Arguments& arguments, std::vector<std::string>& wrong);

// Lowers the memory limit to the value of NVSHARE_GPU_MEMORY_LIMIT, where that is lower. Percent
// are left to each process, because only a process knows its GPU. `text` may be null.
void lower_to_variable(LimitWish& wish, const char* text);

// A name for a program that was given none: its own and a number, as check_run_name() wants it.
std::string default_name(std::string_view program, long pid);

}  // namespace nvshare::cli
