#pragma once

#include <string>
#include <vector>

#include "cli/show/lease_answers.h"

// What `nvshare lease` prints, as functions of what the scheduler answered and of the time.
namespace nvshare::cli {

// One line for each lease and each request that waits.
std::string leases_text(const std::vector<LeaseInfo>& leases, WallTime now, bool colour);
// How one of them stands.
std::string lease_why_text(const LeaseInfo& lease);
std::string classes_text(const std::vector<ClassInfo>& classes, bool colour);
// GPUs, and what became of the requests of each class.
std::string lease_status_text(const LeaseStatus& status, bool colour);

// One look at the scheduler.
struct LeaseLook {
  LeaseStatus status;
  std::vector<LeaseInfo> leases;
};
// A line for each difference between two looks. Renewals are none.
std::string lease_changes_text(const LeaseLook& before, const LeaseLook& after, WallTime now);

// Why there is no lease, and when to ask again: one line without its end.
std::string not_granted_text(const LeaseAnswer& answer);
// Why a lease was taken away, by the API's reason.
std::string taken_away_text(std::string_view reason);

}  // namespace nvshare::cli
