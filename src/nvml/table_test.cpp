#include "nvml/table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

namespace nvshare::nvml {
namespace {

TEST(NvmlTable, RowsAreIndexedByTheirIdAndFoundByTheirSymbol) {
  for (unsigned i = 0; i < kFunctionCount; ++i) {
    EXPECT_EQ(static_cast<unsigned>(kFunctions[i].id), i) << kFunctions[i].symbol;
    EXPECT_EQ(find_symbol(kFunctions[i].symbol), &kFunctions[i]);
  }
  EXPECT_EQ(find_symbol("nvmlNoSuchFunction"), nullptr);
  EXPECT_EQ(find_symbol(nullptr), nullptr);
}

TEST(NvmlTable, NoSymbolTwice) {
  std::set<std::string> seen;
  for (const Function& row : kFunctions) EXPECT_TRUE(seen.insert(row.symbol).second) << row.symbol;
}

// A later version of a function makes no sense without the first, which old programs call.
TEST(NvmlTable, VersionsHaveNoGaps) {
  std::set<std::string> symbols;
  for (const Function& row : kFunctions) symbols.insert(row.symbol);
  for (const std::string& symbol : symbols) {
    if (symbol.size() > 3 && symbol.substr(symbol.size() - 3) == "_v3") {
      EXPECT_TRUE(symbols.count(symbol.substr(0, symbol.size() - 3) + "_v2")) << symbol;
      EXPECT_TRUE(symbols.count(symbol.substr(0, symbol.size() - 3))) << symbol;
    }
  }
}

TEST(NvmlTable, EachGenerationOfTheProcessListTakesItsOwnStructure) {
  using V1 = nvmlReturn_t(nvmlDevice_t, unsigned*, nvmlProcessInfo_v1_t*);
  using V2 = nvmlReturn_t(nvmlDevice_t, unsigned*, nvmlProcessInfo_v2_t*);
  EXPECT_TRUE((std::is_same_v<Signature<FunctionId::nvmlDeviceGetComputeRunningProcesses>, V1>));
  EXPECT_TRUE((std::is_same_v<Signature<FunctionId::nvmlDeviceGetComputeRunningProcesses_v2>, V2>));
  EXPECT_TRUE((std::is_same_v<Signature<FunctionId::nvmlDeviceGetComputeRunningProcesses_v3>, V2>));
}

TEST(NvmlTable, ResultsHaveNames) {
  EXPECT_STREQ(result_name(NVML_SUCCESS), "NVML_SUCCESS");
  EXPECT_STREQ(result_name(NVML_ERROR_GPU_IS_LOST), "NVML_ERROR_GPU_IS_LOST");
  EXPECT_STREQ(result_name(NVML_ERROR_UNKNOWN), "NVML_ERROR_UNKNOWN");
  EXPECT_EQ(result_name(static_cast<nvmlReturn_t>(77)), nullptr);
}

}  // namespace
}  // namespace nvshare::nvml
