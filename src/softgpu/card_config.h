#pragma once

#include "softgpu/config.h"
#include "softgpu/engine/segment.h"

namespace nvshare::softgpu {

// The card that these settings describe. The same settings give the same card, its UUIDs among it,
// in every process and every run, so that it can be named before anybody has it open.
CardConfig card_config(const Config& config);

}  // namespace nvshare::softgpu
