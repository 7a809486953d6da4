#pragma once

#include "base/strong_id.h"

namespace nvshare::core {

using GpuId = StrongId<struct GpuTag>;
// A user, a pod, a container or one `nvshare run`: what limits are given to. Its processes and its
// parts share them.
using TenantId = StrongId<struct TenantTag>;
// One process on one GPU.
using ClientId = StrongId<struct ClientTag>;

}  // namespace nvshare::core
