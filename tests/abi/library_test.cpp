#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/table.h"

// What the library is made of: what it offers, what it needs, and of which age.
namespace {

std::vector<std::string> lines_of(const std::string& command) {
  std::vector<std::string> lines;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  if (pipe == nullptr) return lines;
  std::stringstream text;
  char part[4096];
  while (std::fgets(part, sizeof part, pipe) != nullptr) text << part;
  EXPECT_EQ(::pclose(pipe), 0) << command;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::set<std::string> names(const std::string& command) {
  const auto lines = lines_of(command);
  return {lines.begin(), lines.end()};
}

TEST(Library, ExportsTheTableItsNvmlAndWhatFindsThem) {
  std::set<std::string> expected{"dlopen", "dlsym", "dlvsym", "nvshare_library_version"};
  for (const nvshare::cuda::Function& row : nvshare::cuda::kFunctions) expected.insert(row.symbol);
#define NVSHARE_OWN_NVML(symbol) expected.insert(#symbol);
#include "interposer/catch/own_nvml.def"
  EXPECT_EQ(names("nm -D --defined-only " NVSHARE_LIBRARY " | awk '{print $3}'"), expected);
}

TEST(Library, NeedsTheCLibraryAlone) {
  const auto needed = names("readelf -d " NVSHARE_LIBRARY " | awk '/NEEDED/ {print $5}'");
  EXPECT_EQ(needed, std::set<std::string>{"[libc.so.6]"});
}

// Pairs of numbers, so that 2.4 comes before 2.28.
std::pair<int, int> version_of(const std::string& text) {
  int major = 0;
  int minor = 0;
  std::sscanf(text.c_str(), "GLIBC_%d.%d", &major, &minor);
  return {major, minor};
}

TEST(Library, RunsOnOldCLibraries) {
  const auto versions = names("objdump -T " NVSHARE_LIBRARY " | grep -oE 'GLIBC_[A-Z0-9._]+'");
  ASSERT_FALSE(versions.empty());
  for (const std::string& version : versions) {
    EXPECT_GE(version_of(version).first, 2) << version;
    EXPECT_LE(version_of(version), std::make_pair(2, 28)) << version;
  }
}

TEST(Library, UsesNothingOfCxx) {
  for (const std::string& line : lines_of("nm -D --undefined-only " NVSHARE_LIBRARY)) {
    const std::string symbol = line.substr(line.find_last_of(' ') + 1);
    EXPECT_NE(symbol.substr(0, 2), "_Z") << line;
    EXPECT_EQ(symbol.find("__gxx"), std::string::npos) << line;
    EXPECT_EQ(symbol.find("_Unwind"), std::string::npos) << line;
    EXPECT_EQ(symbol.find("__tls_get_addr"), std::string::npos) << line;
  }
}

TEST(Library, RunsNothingWhenItIsLoaded) {
  // The compiler's own entry, and nothing of ours.
  const auto sizes = lines_of("readelf -d " NVSHARE_LIBRARY " | awk '/INIT_ARRAYSZ/ {print $3}'");
  ASSERT_EQ(sizes.size(), 1U);
  EXPECT_EQ(sizes[0], std::to_string(sizeof(void*)));
}

// A launch through an open gate is what the library costs: straight down to the first return. Built
// without optimisation it says nothing.
#if defined(NDEBUG) && defined(__x86_64__)
TEST(Library, ALaunchCostsFewInstructions) {
  const auto lines =
      lines_of("objdump -d --no-show-raw-insn --disassemble=cuLaunchKernel " NVSHARE_LIBRARY
               " | sed -n '/<cuLaunchKernel>:/,/ret/p'");
  EXPECT_GT(lines.size(), 20U);
  EXPECT_LT(lines.size(), 60U);
}
#endif

}  // namespace
