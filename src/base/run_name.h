#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"

// What `nvshare run` and the scheduler agree on about the names of runs.
namespace nvshare {

inline constexpr std::size_t kLongestName = 63;
// Names that the scheduler gives by itself begin so.
inline constexpr std::string_view kUserPrefix = "user-";
inline constexpr std::string_view kPodPrefix = "pod-";
inline constexpr std::string_view kContainerPrefix = "container-";
inline constexpr std::string_view kCgroupPrefix = "cgroup-";

// Letters, digits, '.', '_' and '-', whatever the locale.
bool is_name_letter(char c);

// Whether a name begins like those that the scheduler gives by itself, to users, pods, containers
// and declared cgroups.
bool is_schedulers_own(std::string_view name);

// What a run may be called: 1 to 63 letters that belong in a name, not like an option and not like
// the tenants that the scheduler names itself.
Result<void> check_run_name(std::string_view name);

}  // namespace nvshare
