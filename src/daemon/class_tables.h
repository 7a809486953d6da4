#pragma once

#include <string>
#include <vector>

#include "config/reader.h"
#include "core/arbiter/task_class.h"

// The tables of scheduler.toml with classes of services: [classes.NMT].
namespace nvshare::daemon {

// The classes that are there without a file, as its tables change them, and those that the file
// adds. Ranges are core::problems()'s business.
std::vector<core::TaskClass> read_classes(config::TableReader& file, config::Problems& problems);
// As read_classes() takes them.
std::string to_file(const std::vector<core::TaskClass>& classes);

}  // namespace nvshare::daemon
