#include <dlfcn.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "integration/process.h"
#include "integration/roads.h"

// A program whose memory is swapped, and calls for which the driver looks at memory without making
// the GPU work: what is recorded into a capture, and what writes addresses down for later. While
// the memory is away they wait.
namespace nvshare::integration {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::uint64_t kAll = ~std::uint64_t{0};

class Away : public WithThings {
 protected:
  void SetUp() override {
    scheduler().backend(wire::Backend::Swap);
    WithThings::SetUp();
    // Zeros need no room on the host.
    for (const CUdeviceptr memory : {things.device, things.other}) {
      ASSERT_OK(call<FunctionId::cuMemsetD8_v2>(memory, static_cast<unsigned char>(0), kMiB));
    }
    ASSERT_OK(call<FunctionId::cuCtxSynchronize>());
  }
  void TearDown() override {
    scheduler().open();
    EXPECT_OK(call<FunctionId::cuMemFree_v2>(things.device));
    EXPECT_OK(call<FunctionId::cuMemFree_v2>(things.other));
    WithThings::TearDown();
  }

  // Takes the GPU from the program, and its memory.
  void send_away() {
    ASSERT_TRUE(scheduler().close());
    ASSERT_EQ(scheduler().order_out(kAll).out, 2 * kMiB);
  }
  // Gives them back.
  void bring_back() {
    EXPECT_EQ(scheduler().order_in(kAll).in, 2 * kMiB);
    scheduler().open();
  }
  void begin_capture(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED) {
    ASSERT_OK(call<FunctionId::cuStreamBeginCapture_v2>(things.stream, mode));
  }
  void end_capture() {
    CUgraph graph{};
    EXPECT_OK(call<FunctionId::cuStreamEndCapture>(things.stream, &graph));
    EXPECT_OK(call<FunctionId::cuGraphDestroy>(graph));
  }

  void expect_held_back(const Function& row, const Road& road) {
    SCOPED_TRACE(row.symbol);
    void* function = ::dlsym(library, row.symbol);
    begin_capture();
    const CUresult expected = road(function, things);
    EXPECT_EQ(expected, is_implemented(row.symbol) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
    send_away();
    const unsigned long before = calls_of(row.symbol);
    Aside caller(context, [&] { return road(function, things); });
    EXPECT_TRUE(eventually([&] { return scheduler().waiting() == 1 || caller.returned(); }, 20s));
    EXPECT_FALSE(caller.returned()) << "it was not held back";
    EXPECT_EQ(calls_of(row.symbol), before) << "it reached the driver";
    bring_back();
    EXPECT_EQ(caller.result(), expected);
    end_capture();
  }
};

// A scheduler of before protocol 1.4 brings nobody together; a later one learns the name again.
TEST_F(Away, AHandleIsGivenOutWhereTheSchedulerKnowsOfIpc) {
  CUipcMemHandle handle{};
  scheduler().speak(wire::kMinorIpc - 1);
  ASSERT_TRUE(scheduler().reconnect(1));
  const std::uint64_t others = scheduler().pinned();
  EXPECT_EQ(call<FunctionId::cuIpcGetMemHandle>(&handle, things.device), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(scheduler().pinned(), others);
  EXPECT_EQ(scheduler().told_names(), 0u);
  scheduler().speak(wire::kMinor);
  ASSERT_TRUE(scheduler().reconnect(1));
  const CUdeviceptr shared = allocate(3 * kMiB);
  for (int i = 0; i < 2; ++i) {
    EXPECT_OK(call<FunctionId::cuIpcGetMemHandle>(&handle, shared));
  }
  EXPECT_TRUE(eventually([&] { return scheduler().pinned() == others + 3 * kMiB; }, 20s));
  const std::uint64_t before = scheduler().told_names();
  EXPECT_GT(before, 0u);
  ASSERT_TRUE(scheduler().reconnect(1));
  EXPECT_TRUE(eventually([&] { return scheduler().told_names() == before + 1; }, 20s));
  EXPECT_OK(call<FunctionId::cuMemFree_v2>(shared));
  EXPECT_TRUE(eventually([&] { return scheduler().pinned() == others; }, 20s));
}

// Only what is given a stream, and not every such call.
bool can_be_captured(const Function& row) {
  const std::string_view symbol = row.symbol;
  if (symbol == "cuStreamAttachMemAsync") return false;
  return symbol.starts_with("cuStream") || symbol.find("Async") != std::string_view::npos;
}

// A scheduler counts its beats for each connection anew. A program that saw the third beat long ago
// sees the third beat of another scheduler.
TEST_F(Away, TheBeatsOfTheLastSchedulerAreForgotten) {
  constexpr Duration kHung = 5s;  // without a beat
  constexpr Duration kLook = 1s;  // between two looks of a program without a grant
  scheduler().beat(3);
  ASSERT_TRUE(scheduler().reconnect(1));
  std::this_thread::sleep_for(2 * kLook);
  scheduler().hide(true);
  ASSERT_TRUE(scheduler().reconnect(0));
  std::this_thread::sleep_for(kHung);
  scheduler().hide(false);
  ASSERT_TRUE(scheduler().wait_for_clients(1));
  const std::uint64_t welcomed = scheduler().welcomed();
  std::this_thread::sleep_for(3 * kLook);
  EXPECT_EQ(scheduler().welcomed(), welcomed) << "it took the scheduler for hung";
}

TEST_F(Away, WhatLooksAtMemoryWaitsUntilItIsBack) {
  int walked = 0;
  for (const Function& row : kFunctions) {
    if (!looks_at_memory(row.kind)) continue;
    const bool twin = row.flavour == Flavour::Ptds || row.flavour == Flavour::Ptsz;
    if (row.kind != Kind::Bind && (twin || !can_be_captured(row))) continue;
    const auto road = road_of(row);
    ASSERT_TRUE(road) << row.symbol << " has no case: add one to roads.cpp";
    expect_held_back(row, *road);
    if (HasFatalFailure()) return;
    ++walked;
  }
  EXPECT_GT(walked, 50) << "so many there were when this was written";
}

// They make no work, and their addresses are nothing to the driver.
TEST_F(Away, KernelsAreCapturedAllTheSame) {
  begin_capture();
  send_away();
  for (const char* symbol : {"cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchHostFunc"}) {
    const auto road = road_of(*find_symbol(symbol));
    Aside caller(context, [&] { return (*road)(::dlsym(library, symbol), things); });
    EXPECT_TRUE(eventually([&] { return caller.returned(); }, 20s)) << symbol;
    EXPECT_EQ(scheduler().waiting(), 0u) << symbol;
    if (!caller.returned()) bring_back();
    EXPECT_OK(caller.result()) << symbol;
  }
  end_capture();
  bring_back();
}

// Who only looks has not used the GPU, and does not keep it.
TEST_F(Away, LookingIsNotUsing) {
  for (const char* symbol : {"cuMemsetD8Async", "cuGraphAddMemsetNode", "cuGraphInstantiate"}) {
    ASSERT_TRUE(scheduler().close());
    begin_capture();
    const std::uint64_t used = scheduler().used();
    const auto road = road_of(*find_symbol(symbol));
    Aside caller(context, [&] { return (*road)(::dlsym(library, symbol), things); });
    EXPECT_TRUE(scheduler().wait_for_waiting(1)) << symbol;
    scheduler().open();
    EXPECT_OK(caller.result()) << symbol;
    EXPECT_TRUE(eventually([] { return scheduler().holding() == 0; }, 20s)) << symbol;
    EXPECT_EQ(scheduler().used(), used) << symbol;
    end_capture();
  }
}

// What is on the GPU waits for the host, that is for a thread that waits for the GPU.
TEST_F(Away, ACaptureThatWorkInFlightWaitsForIsLetThrough) {
  const CUstream stream = new_stream();
  auto* word = static_cast<std::atomic<unsigned>*>(things.host);
  *word = 0;
  ASSERT_OK(call<FunctionId::cuStreamWaitValue32_v2>(stream, things.pinned, 1u,
                                                     unsigned{CU_STREAM_WAIT_VALUE_GEQ}));
  begin_capture();
  std::atomic<bool> go{false};
  Aside capturer(context, [&] {
    eventually([&] { return go.load(); }, 20s);
    const CUresult result = call<FunctionId::cuMemsetD8Async>(
        things.device, static_cast<unsigned char>(0), kMiB, things.stream);
    *word = 1;
    return result;
  });
  EXPECT_FALSE(scheduler().close(10ms)) << "nothing is in flight";
  go = true;
  EXPECT_TRUE(scheduler().close());
  EXPECT_OK(capturer.result());
  end_capture();
}

class AwayCaptures : public Away, public ::testing::WithParamInterface<CUstreamCaptureMode> {
 protected:
  // Into the capture: what is to be seen in memory when the graph has run.
  CUresult record() {
    const CUstream stream = things.stream;
    CUresult result = call<FunctionId::cuMemsetD32Async>(things.device, 7u, kMiB / 4, stream);
    if (result != CUDA_SUCCESS) return result;
    result = call<FunctionId::cuMemcpyAsync>(things.other, things.device, kMiB / 2, stream);
    if (result != CUDA_SUCCESS) return result;
    return call<FunctionId::cuMemcpyDtoDAsync_v2>(things.other + kMiB / 2, things.device, kMiB / 2,
                                                  stream);
  }
};

// As a thread that captures meets it, which in two of the modes may do little else.
TEST_P(AwayCaptures, AreWholeAndRightWhenTheMemoryLeftMeanwhile) {
  std::atomic<bool> begun{false};
  std::atomic<bool> away{false};
  CUgraphExec executable{};
  Aside capturer(context, [&] {
    CUgraph graph{};
    CUresult result = call<FunctionId::cuStreamBeginCapture_v2>(things.stream, GetParam());
    begun = true;
    eventually([&] { return away.load(); }, 20s);
    if (result == CUDA_SUCCESS) result = record();
    const CUresult ended = call<FunctionId::cuStreamEndCapture>(things.stream, &graph);
    if (result == CUDA_SUCCESS) result = ended;
    if (result != CUDA_SUCCESS) return result;
    return call<FunctionId::cuGraphInstantiateWithFlags>(&executable, graph, 0ull);
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }, 20s));
  send_away();
  away = true;
  EXPECT_TRUE(scheduler().wait_for_waiting(1)) << "it did not wait for its memory";
  bring_back();
  ASSERT_OK(capturer.result());
  ASSERT_OK(call<FunctionId::cuGraphLaunch>(executable, things.stream));
  ASSERT_OK(call<FunctionId::cuStreamSynchronize>(things.stream));
  EXPECT_EQ(word(things.other), 7u);
  EXPECT_EQ(word(things.other + kMiB - 4), 7u);
  ASSERT_OK(call<FunctionId::cuGraphExecDestroy>(executable));
}

// The allocator of a framework grows while it captures, and there is no room.
TEST_P(AwayCaptures, WaitForMemoryThatWasNeverThere) {
  CUdeviceptr grown = 0;
  Aside capturer(context, [&] {
    CUgraph graph{};
    CUresult result = call<FunctionId::cuStreamBeginCapture_v2>(things.stream, GetParam());
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    call<FunctionId::cuThreadExchangeStreamCaptureMode>(&mode);
    scheduler().full(true);
    if (result == CUDA_SUCCESS) result = call<FunctionId::cuMemAlloc_v2>(&grown, 4 * kMiB);
    scheduler().full(false);
    call<FunctionId::cuThreadExchangeStreamCaptureMode>(&mode);
    if (result == CUDA_SUCCESS) {
      result = call<FunctionId::cuMemsetD32Async>(grown, 7u, kMiB, things.stream);
    }
    const CUresult ended = call<FunctionId::cuStreamEndCapture>(things.stream, &graph);
    return result == CUDA_SUCCESS ? ended : result;
  });
  ASSERT_TRUE(scheduler().close());
  EXPECT_TRUE(scheduler().wait_for_waiting(1)) << "it did not wait for its memory";
  EXPECT_EQ(scheduler().order_in(kAll).in, 4 * kMiB);
  scheduler().open();
  EXPECT_OK(capturer.result());
  EXPECT_OK(call<FunctionId::cuMemFree_v2>(grown));
}

INSTANTIATE_TEST_SUITE_P(Modes, AwayCaptures,
                         ::testing::Values(CU_STREAM_CAPTURE_MODE_GLOBAL,
                                           CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                           CU_STREAM_CAPTURE_MODE_RELAXED));

}  // namespace
}  // namespace nvshare::integration
