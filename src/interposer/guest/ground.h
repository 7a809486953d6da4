#pragma once

// The ground that every room stands on: its names are theirs, too.
namespace nvshare::interposer {

namespace guest {}
using namespace guest;

}  // namespace nvshare::interposer
