#pragma once

#include <string>

#include "softgpu/smi/snapshot.h"

// A snapshot as text. Pure: the same snapshot gives the same text.
namespace nvshare::smi {

// The table that people know, `version` being softgpu-smi's own.
std::string table(const Snapshot& snapshot, const std::string& version);

// "GPU 0: NAME (UUID: GPU-...)", a line for each device.
std::string list(const Snapshot& snapshot);

// Everything, on one line; what is not known is null. docs/softgpu.md has the members.
std::string json(const Snapshot& snapshot);

}  // namespace nvshare::smi
