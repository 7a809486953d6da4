#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/broker/records.h"

// The names that the scheduler gives to users, pods, containers and declared cgroups, and what a
// cgroup says of them. Runs have names of their own.
namespace nvshare::daemon {

// Letters of a container's id. Every runtime but LXC has ids of this length.
inline constexpr std::size_t kIdLength = 64;
// Letters of an id in its tenant's name, as the runtimes show it.
inline constexpr std::size_t kShownIdLength = 12;

// The group of a run is called so, with the run's name behind it.
inline constexpr std::string_view kRunGroupPrefix = "nvshare-run-";

// "user-1000".
TenantName user_tenant(std::uint32_t uid);
// "container-" and the first letters of the id, or the name under LXC.
TenantName container_tenant(std::string_view id, std::uint32_t uid = 0);
// "pod-" and the pod's UID, as Kubernetes shows it.
TenantName pod_tenant(std::string_view pod, std::uint32_t uid = 0);
// "cgroup-" and the path, with '-' for each '/'. Of a path that is too long, the end.
TenantName cgroup_tenant(std::string_view path, std::uint32_t uid = 0);
// The tenant that is called so and is no run. Nothing for every other name.
std::optional<TenantName> tenant_called(const std::string& name, std::uint32_t uid = 0);

// --- as people write them

// A container by its id, the first letters of that, its name under LXC, or its tenant's name. A
// text that is nearly an id is an error, because no container would ever have that name.
Result<TenantName> container_named(const std::string& text);
// A pod by its UID, or its tenant's name.
Result<TenantName> pod_named(const std::string& text);
// A cgroup by its path in the cgroup2 hierarchy. Groups of containers, of pods and of users are
// errors, because these have tenants of their own.
Result<TenantName> cgroup_named(const std::string& path);

// --- as the kernel writes them

// The pod and the container of a process; each may be missing.
struct FoundInCgroup {
  std::optional<std::string> pod;        // its UID
  std::optional<std::string> container;  // its id, or its name under LXC
};
// From the text of /proc/PID/cgroup. Of containers in a container the outer one counts, because the
// inner ones were made by its programs. Groups below a user's own slice or service manager were
// made by that user, and are none. `is_of_a_user` says of a group of the cgroup2 hierarchy that a
// user owns it: that user has made the groups below it.
using IsOfAUser = std::function<bool(const std::string& group)>;
FoundInCgroup found_in_cgroup(std::string_view text, const IsOfAUser& is_of_a_user = {});

// The process's group in the cgroup2 hierarchy, from the same text.
std::optional<std::string> group_in_cgroup(std::string_view text);

}  // namespace nvshare::daemon
