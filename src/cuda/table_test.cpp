#include "cuda/table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>

namespace nvshare::cuda {
namespace {

constexpr uint64_t kDefault = CU_GET_PROC_ADDRESS_DEFAULT;
constexpr uint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

std::string symbol_for(const char* name, int version, uint64_t flags = kDefault) {
  const Resolution found = find(name, version, flags);
  return found.function == nullptr ? "" : found.function->symbol;
}

bool is_twin(const Function& row) {
  return row.flavour == Flavour::Ptds || row.flavour == Flavour::Ptsz;
}

TEST(Table, RowsAreIndexedByTheirId) {
  for (unsigned i = 0; i < kFunctionCount; ++i) {
    EXPECT_EQ(static_cast<unsigned>(kFunctions[i].id), i) << kFunctions[i].symbol;
    EXPECT_EQ(&function(kFunctions[i].id), &kFunctions[i]);
  }
}

TEST(Table, NoSymbolTwice) {
  std::set<std::string> seen;
  for (const Function& row : kFunctions) EXPECT_TRUE(seen.insert(row.symbol).second) << row.symbol;
}

TEST(Table, NameVersionAndFlavourNameOneRow) {
  std::set<std::tuple<std::string, int, bool>> seen;
  for (const Function& row : kFunctions) {
    EXPECT_TRUE(seen.insert({row.name, row.since, is_twin(row)}).second) << row.symbol;
  }
}

TEST(Table, SymbolsAreSpelledFromTheirNames) {
  for (const Function& row : kFunctions) {
    std::string rest = row.symbol;
    ASSERT_EQ(rest.rfind(row.name, 0), 0u) << row.symbol;
    rest = rest.substr(std::string(row.name).size());
    const std::string ending = row.flavour == Flavour::Ptds   ? "_ptds"
                               : row.flavour == Flavour::Ptsz ? "_ptsz"
                                                              : "";
    ASSERT_GE(rest.size(), ending.size()) << row.symbol;
    EXPECT_EQ(rest.substr(rest.size() - ending.size()), ending) << row.symbol;
    rest.resize(rest.size() - ending.size());
    if (!rest.empty()) {
      EXPECT_TRUE(rest.size() == 3 && rest[0] == '_' && rest[1] == 'v' && rest[2] >= '2')
          << row.symbol;
    }
  }
}

TEST(Table, LegacyMeansThatThereIsATwinAndOnlyThen) {
  std::set<std::string> symbols;
  for (const Function& row : kFunctions) symbols.insert(row.symbol);
  for (const Function& row : kFunctions) {
    const std::string symbol = row.symbol;
    const bool has_twin = symbols.count(symbol + "_ptds") + symbols.count(symbol + "_ptsz") > 0;
    EXPECT_EQ(row.flavour == Flavour::Legacy, has_twin) << symbol;
  }
}

TEST(Table, LaterVersionsOfASymbolAreNewer) {
  std::map<std::string, int> since;
  for (const Function& row : kFunctions) since[row.symbol] = row.since;
  for (const auto& [symbol, version] : since) {
    for (char generation = '2'; generation <= '4'; ++generation) {
      const auto next = since.find(symbol + "_v" + generation);
      if (next != since.end()) {
        EXPECT_LT(version, next->second) << next->first;
      }
    }
  }
}

TEST(Find, EveryRowIsFoundAtItsOwnVersion) {
  for (const Function& row : kFunctions) {
    EXPECT_EQ(symbol_for(row.name, row.since, is_twin(row) ? kPerThread : kDefault), row.symbol);
  }
}

TEST(Find, TheNewestThatIsNotTooNewWins) {
  EXPECT_EQ(symbol_for("cuMemAlloc", 2000), "cuMemAlloc");
  EXPECT_EQ(symbol_for("cuMemAlloc", 3010), "cuMemAlloc");
  EXPECT_EQ(symbol_for("cuMemAlloc", 3020), "cuMemAlloc_v2");
  EXPECT_EQ(symbol_for("cuMemAlloc", 13000), "cuMemAlloc_v2");
  EXPECT_EQ(symbol_for("cuCtxCreate", 3020), "cuCtxCreate_v2");
  EXPECT_EQ(symbol_for("cuCtxCreate", 11040), "cuCtxCreate_v3");
  EXPECT_EQ(symbol_for("cuCtxCreate", 13000), "cuCtxCreate_v4");
  EXPECT_EQ(symbol_for("cuGetProcAddress", 11030), "cuGetProcAddress");
  EXPECT_EQ(symbol_for("cuGetProcAddress", 12000), "cuGetProcAddress_v2");
  EXPECT_EQ(symbol_for("cuEventElapsedTime", 12000), "cuEventElapsedTime");
  EXPECT_EQ(symbol_for("cuEventElapsedTime", 12080), "cuEventElapsedTime_v2");
}

// cuda.h lets the name mean cuGraphInstantiateWithFlags from CUDA 12.0 on; the driver does not.
TEST(Find, ANameDoesNotComeToMeanAnotherFunction) {
  EXPECT_EQ(symbol_for("cuGraphInstantiate", 10000), "cuGraphInstantiate");
  EXPECT_EQ(symbol_for("cuGraphInstantiate", 11000), "cuGraphInstantiate_v2");
  EXPECT_EQ(symbol_for("cuGraphInstantiate", 12000), "cuGraphInstantiate_v2");
  EXPECT_EQ(symbol_for("cuGraphInstantiateWithFlags", 11040), "cuGraphInstantiateWithFlags");
}

TEST(Find, PerThreadStreamsOnlyWhenAskedForAndThere) {
  EXPECT_EQ(symbol_for("cuMemcpyHtoD", 7000), "cuMemcpyHtoD_v2");
  EXPECT_EQ(symbol_for("cuMemcpyHtoD", 7000, CU_GET_PROC_ADDRESS_LEGACY_STREAM), "cuMemcpyHtoD_v2");
  EXPECT_EQ(symbol_for("cuMemcpyHtoD", 7000, kPerThread), "cuMemcpyHtoD_v2_ptds");
  EXPECT_EQ(symbol_for("cuMemcpyHtoD", 6000, kPerThread), "");
  EXPECT_EQ(symbol_for("cuMemcpyHtoDAsync", 13000, kPerThread), "cuMemcpyHtoDAsync_v2_ptsz");
  EXPECT_EQ(symbol_for("cuMemAlloc", 13000, kPerThread), "cuMemAlloc_v2");
}

TEST(Find, SaysWhyThereIsNothing) {
  EXPECT_EQ(find("cuNoSuchThing", 13000, 0).status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(find(nullptr, 13000, 0).status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(find("", 13000, 0).status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(find("cuMemAlloc", 1000, 0).status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(find("cuMemAlloc", 1000, 0).function, nullptr);
  EXPECT_EQ(find("cuMemAlloc", 13000, 0).status, CU_GET_PROC_ADDRESS_SUCCESS);
}

TEST(FindSymbol, ByExportedSymbol) {
  for (const Function& row : kFunctions) EXPECT_EQ(find_symbol(row.symbol), &row);
  EXPECT_EQ(find_symbol(nullptr), nullptr);
  EXPECT_EQ(find_symbol(""), nullptr);
  EXPECT_EQ(find_symbol("cudaMalloc"), nullptr);
  EXPECT_EQ(find_symbol("cuMemAlloc_v3"), nullptr);
  EXPECT_EQ(find_symbol("malloc"), nullptr);
}

TEST(ResultName, NamesResultsAndNothingElse) {
  EXPECT_STREQ(result_name(CUDA_SUCCESS), "CUDA_SUCCESS");
  EXPECT_STREQ(result_name(CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(result_name(static_cast<CUresult>(12345)), nullptr);
}

}  // namespace
}  // namespace nvshare::cuda
