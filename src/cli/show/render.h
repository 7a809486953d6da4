#pragma once

#include <string>
#include <vector>

#include "cli/show/answers.h"

// What commands print, as functions of what the scheduler answered.
namespace nvshare::cli {

// GPUs, tenants and those that use a GPU without nvshare.
std::string status_text(const Status& status, bool colour);
// One line for each process.
std::string processes_text(const Status& status, bool colour);
// A tenant's limits and state in one line.
std::string tenant_line(const TenantInfo& tenant);
// One line for each process, and one for host memory where it is a part of the answer.
std::string why_text(const std::string& name, const WhyInfo& why);
// What the host memory is limited by, in words: "a cgroup".
std::string limiter(const ArenaInfo& arena);
std::string settings_text(const std::vector<SettingInfo>& settings, bool colour);

}  // namespace nvshare::cli
