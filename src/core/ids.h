#pragma once

#include "base/strong_id.h"

namespace nvshare::core {

using GpuId = StrongId<struct GpuTag>;
// A pod's container or one `nvshare run`: what limits are given to. Its processes share them.
using TenantId = StrongId<struct TenantTag>;
// One process on one GPU.
using ClientId = StrongId<struct ClientTag>;

}  // namespace nvshare::core
