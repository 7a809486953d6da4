#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What benchmarks of whole programs have in common.
namespace nvshare::bench {

// The value below which that part of all values lies; changes their order. 0 for none.
inline double at(std::vector<double>& all, double part) {
  if (all.empty()) return 0;
  const auto place = static_cast<std::ptrdiff_t>(part * static_cast<double>(all.size() - 1));
  std::nth_element(all.begin(), all.begin() + place, all.end());
  return all[static_cast<std::size_t>(place)];
}

struct Options {
  std::string build;   // folder
  bool check = false;  // a limit that is missed is an error
  std::string out;     // file for the results; empty: none
};

// BUILD_DIR [--check] [--out FILE]; nothing, and a line, for anything else.
inline std::optional<Options> read_options(const char* program, int count, char** words) {
  Options options;
  bool good = true;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--check") {
      options.check = true;
    } else if (word == "--out" && i + 1 < count) {
      options.out = words[++i];
    } else if (options.build.empty() && !word.starts_with("-")) {
      options.build = std::filesystem::absolute(word).string();
    } else {
      good = false;
    }
  }
  if (good && !options.build.empty()) return options;
  std::fprintf(stderr, "usage: %s BUILD_DIR [--check] [--out FILE]\n", program);
  return std::nullopt;
}

}  // namespace nvshare::bench
