#pragma once

#include <string>
#include <vector>

#include "config/reader.h"
#include "core/arbiter/task_class.h"

// The tables with classes of services: [classes.NMT], in scheduler.toml and in scenarios.
namespace nvshare::config {

// The classes that are there without a file, as its tables change them, and those that the file
// adds. Ranges are core::problems()'s business.
std::vector<core::TaskClass> read_classes(TableReader& file, Problems& problems);
// As read_classes() takes them.
std::string to_file(const std::vector<core::TaskClass>& classes);

// As a class and a request for a lease may say it.
const Choices<core::Refusal>& refusals();

}  // namespace nvshare::config
