#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace nvshare::smi {

enum class Show { kTable, kList, kDevices, kProcesses, kJson, kHelp };

struct Options {
  Show show = Show::kTable;
  std::vector<std::string> fields;  // of a query, each one known
  bool header = true;
  bool units = true;
  std::optional<Duration> loop;
  std::string device;  // index, UUID or bus address; empty: all
};

// The command line without the program's name. All that is wrong is an error of one line.
Result<Options> parse_options(const std::vector<std::string>& arguments);

// What --help prints.
std::string help_text();

}  // namespace nvshare::smi
