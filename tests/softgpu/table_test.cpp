#include "cuda/table.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "softgpu/fixture.h"

// The library against the table: what it exports, and what of it has no body.
namespace nvshare::softgpu {
namespace {

std::set<std::string> lines_of(std::istream& in) {
  std::set<std::string> lines;
  std::string line;
  while (std::getline(in, line)) {
    if (!line.empty() && line[0] != '#') lines.insert(line);
  }
  return lines;
}

TEST(Table, WhatIsNotImplementedIsListed) {
  std::ifstream file(NVSHARE_SOFTGPU_UNIMPLEMENTED);
  ASSERT_TRUE(file);
  std::set<std::string> missing;
  for (const cuda::Function& function : kFunctions) {
    if (softgpuIsImplemented(function.symbol) == 0) missing.insert(function.symbol);
  }
  EXPECT_EQ(missing, lines_of(file));
}

TEST(Table, TheLibraryExportsItAndNothingElse) {
  std::FILE* pipe =
      ::popen("nm -D --defined-only " NVSHARE_SOFTGPU_LIBRARY " | cut -d' ' -f3", "r");
  ASSERT_NE(pipe, nullptr);
  std::stringstream names;
  char part[4096];
  while (std::fgets(part, sizeof part, pipe) != nullptr) names << part;
  ASSERT_EQ(::pclose(pipe), 0);
  std::set<std::string> expected{"softgpuCallCount", "softgpuFailCalls", "softgpuIsImplemented"};
  for (const cuda::Function& function : kFunctions) expected.insert(function.symbol);
  EXPECT_EQ(lines_of(names), expected);
}

}  // namespace
}  // namespace nvshare::softgpu
