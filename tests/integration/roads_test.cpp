#include "integration/roads.h"

#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "integration/process.h"

// No work reaches the GPU but through the gate: every symbol of the table that makes the GPU work
// is called while the gate is closed.
namespace nvshare::integration {
namespace {

class Roads : public WithThings {
 protected:
  // The result with the gate open.
  CUresult unhindered(const Road& road, void* function) {
    scheduler().open();
    const CUresult result = road(function, things);
    EXPECT_OK(call<FunctionId::cuCtxSynchronize>());
    return result;
  }

  void expect_held_back(const Function& row, const Road& road, void* function) {
    SCOPED_TRACE(row.symbol);
    const CUresult expected = unhindered(road, function);
    EXPECT_EQ(expected, is_implemented(row.symbol) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_TRUE(scheduler().close());
    const unsigned long before = calls_of(row.symbol);
    Aside caller(context, [&] { return road(function, things); });
    // Either it asks for the GPU, or it got away.
    for (int i = 0; i < 10'000 && scheduler().waiting() == 0 && !caller.returned(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(scheduler().waiting(), 1u) << "it did not ask for the GPU";
    EXPECT_FALSE(caller.returned()) << "it was not held back";
    EXPECT_EQ(calls_of(row.symbol), before) << "it reached the driver";
    scheduler().open();
    EXPECT_EQ(caller.result(), expected);
    EXPECT_EQ(calls_of(row.symbol), before + 1);
  }
};

TEST_F(Roads, NothingThatMakesTheGpuWorkPassesAClosedGate) {
  int walked = 0;
  for (const Function& row : kFunctions) {
    if (!makes_the_gpu_work(row.kind)) continue;
    const auto road = road_of(row);
    if (!road) {
      ADD_FAILURE() << row.symbol << " has no case: add one to roads.cpp";
      continue;
    }
    void* function = ::dlsym(library, row.symbol);
    ASSERT_NE(function, nullptr) << row.symbol;
    expect_held_back(row, *road, function);
    if (HasFatalFailure()) return;
    ++walked;
  }
  EXPECT_GT(walked, 150) << "so many there were when this was written";
}

// Under `native` nothing is ever away.
TEST_F(Roads, WhatWritesAddressesDownPassesAClosedGateWhereNoMemoryCanLeave) {
  int walked = 0;
  for (const Function& row : kFunctions) {
    if (row.kind != Kind::Bind) continue;
    const auto road = road_of(row);
    ASSERT_TRUE(road) << row.symbol << " has no case: add one to roads.cpp";
    void* function = ::dlsym(library, row.symbol);
    const CUresult expected = unhindered(*road, function);
    ASSERT_TRUE(scheduler().close());
    Aside caller(context, [&] { return (*road)(function, things); });
    EXPECT_TRUE(eventually([&] { return caller.returned(); }, 20s)) << row.symbol;
    EXPECT_EQ(scheduler().waiting(), 0u) << row.symbol;
    scheduler().open();
    EXPECT_EQ(caller.result(), expected) << row.symbol;
    ++walked;
  }
  EXPECT_GE(walked, 22) << "so many there were when this was written";
}

// The library's file that an address lies in.
std::string home_of(void* address) {
  Dl_info info{};
  if (address == nullptr || ::dladdr(address, &info) == 0) return "nowhere";
  return info.dli_fname;
}

TEST_F(Roads, EveryWayToAFunctionLeadsToTheLibrary) {
  const std::string home = NVSHARE_LIBRARY;
  for (const Function& row : kFunctions) {
    if (!makes_the_gpu_work(row.kind)) continue;
    SCOPED_TRACE(row.symbol);
    EXPECT_EQ(home_of(::dlsym(library, row.symbol)), home) << "dlsym of the driver's handle";
    EXPECT_EQ(home_of(::dlsym(RTLD_DEFAULT, row.symbol)), home) << "dlsym of RTLD_DEFAULT";
    const bool twin = row.flavour == Flavour::Ptds || row.flavour == Flavour::Ptsz;
    const uint64_t flags =
        twin ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    EXPECT_OK(call<FunctionId::cuGetProcAddress_v2>(row.name, &found, row.since, flags, &status));
    EXPECT_EQ(home_of(found), home) << "cuGetProcAddress_v2";
    found = nullptr;
    EXPECT_OK(call<FunctionId::cuGetProcAddress>(row.name, &found, row.since, flags));
    EXPECT_EQ(home_of(found), home) << "cuGetProcAddress";
  }
}

// What cuGetProcAddress answers for cuGetProcAddress itself is asked in turn: so the CUDA runtime
// does it.
TEST_F(Roads, TheResolverThatTheResolverAnswersIsTheLibrarys) {
  void* resolver = nullptr;
  CUdriverProcAddressQueryResult status{};
  ASSERT_OK(call<FunctionId::cuGetProcAddress_v2>("cuGetProcAddress", &resolver, 12000, uint64_t{0},
                                                  &status));
  ASSERT_NE(resolver, nullptr);
  void* launch = nullptr;
  ASSERT_OK(reinterpret_cast<Signature<FunctionId::cuGetProcAddress_v2>*>(resolver)(
      "cuLaunchKernel", &launch, 12000, 0, &status));
  EXPECT_EQ(home_of(launch), NVSHARE_LIBRARY);
}

}  // namespace
}  // namespace nvshare::integration
