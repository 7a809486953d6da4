#include <atomic>
#include <initializer_list>
#include <thread>

#include "integration/preloaded.h"
#include "integration/process.h"

// What happens to work under way, and to captures, when the gate closes.
namespace nvshare::integration {
namespace {

constexpr CUhostFn kNote = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); };

// While its work is counted, and while it is not.
class Closing : public Preloaded, public ::testing::WithParamInterface<wire::Watch> {
 protected:
  void SetUp() override {
    Preloaded::SetUp();
    scheduler().watch(GetParam());
  }
  void TearDown() override {
    without_memory({"cuEventCreate", "cuEventRecord"}, false);
    scheduler().watch(wire::Watch::Metered);
    Preloaded::TearDown();
  }
  // The driver has none for these.
  static void without_memory(std::initializer_list<const char*> symbols, bool is = true) {
    for (const char* symbol : symbols) fail_calls(symbol, is ? 1'000'000'000 : 0);
  }
  // Submits, closes the gate, and looks whether anything is left at the moment of the release.
  template <typename Submit, typename Query>
  void expect_nothing_left(Submit submit, Query query) {
    scheduler().open();
    ASSERT_OK(submit());
    ASSERT_TRUE(scheduler().close()) << "it was not released";
    EXPECT_OK(query()) << "something is still on the GPU";
  }
  CUresult query(CUstream stream) { return call<FunctionId::cuStreamQuery>(stream); }
};

TEST_P(Closing, NothingIsLeftInTheDefaultStream) {
  expect_nothing_left([&] { return spin(nullptr, 60ms); }, [&] { return query(nullptr); });
}

TEST_P(Closing, NothingIsLeftInStreams) {
  std::vector<CUstream> streams;
  for (int i = 0; i < 6; ++i) {
    streams.push_back(new_stream(i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
  }
  expect_nothing_left(
      [&] {
        CUresult result = CUDA_SUCCESS;
        for (const CUstream stream : streams) result = std::max(result, spin(stream, 30ms));
        return result;
      },
      [&] {
        CUresult result = CUDA_SUCCESS;
        for (const CUstream stream : streams) result = std::max(result, query(stream));
        return result;
      });
}

TEST_P(Closing, NothingIsLeftInTheStreamOfAThread) {
  std::atomic<bool> closed{false};
  std::atomic<bool> submitted{false};
  Aside thread(context, [&] {
    const CUresult result = spin_per_thread(60ms);
    submitted = true;
    if (result != CUDA_SUCCESS) return result;
    eventually([&] { return closed.load(); }, 30s);
    return call<FunctionId::cuStreamQuery_ptsz>(CUstream{});
  });
  ASSERT_TRUE(eventually([&] { return submitted.load(); }, 30s));
  EXPECT_TRUE(scheduler().close());
  closed = true;
  EXPECT_OK(thread.result());
}

TEST_P(Closing, NothingIsLeftOfAGraph) {
  const CUstream stream = new_stream();
  CUgraph graph{};
  CUgraphExec executable{};
  ASSERT_OK(call<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 4; ++i) ASSERT_OK(spin(stream, 15ms));
  ASSERT_OK(call<FunctionId::cuStreamEndCapture>(stream, &graph));
  ASSERT_OK(call<FunctionId::cuGraphInstantiateWithFlags>(&executable, graph, 0ull));
  expect_nothing_left([&] { return call<FunctionId::cuGraphLaunch>(executable, stream); },
                      [&] { return query(stream); });
}

TEST_P(Closing, HostFunctionsHaveBeenCalled) {
  const CUstream stream = new_stream();
  std::atomic<bool> called{false};
  expect_nothing_left(
      [&] {
        const CUresult result = spin(stream, 40ms);
        if (result != CUDA_SUCCESS) return result;
        return call<FunctionId::cuLaunchHostFunc>(stream, kNote, static_cast<void*>(&called));
      },
      [&] { return called ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; });
}

TEST_P(Closing, NothingIsLeftOnASecondDevice) {
  CUcontext second{};
  ASSERT_OK(call<FunctionId::cuDevicePrimaryCtxRetain>(&second, 1));
  ASSERT_OK(call<FunctionId::cuCtxSetCurrent>(second));
  CUmodule module{};
  ASSERT_OK(
      call<FunctionId::cuModuleLoadData>(&module, static_cast<const void*>(programs::kJobKernels)));
  ASSERT_OK(call<FunctionId::cuModuleGetFunction>(&spin_kernel, module, "spin"));
  ASSERT_OK(spin(nullptr, 1ms));
  ASSERT_TRUE(scheduler().wait_for_clients(2)) << "each device is a client of its own";
  expect_nothing_left([&] { return spin(nullptr, 60ms); }, [&] { return query(nullptr); });
  Aside caller(second, [&] { return spin(nullptr, 1ms); });
  EXPECT_TRUE(scheduler().wait_for_waiting(1));
  EXPECT_FALSE(caller.returned());
  scheduler().open();
  EXPECT_OK(caller.result());
  ASSERT_OK(call<FunctionId::cuCtxSetCurrent>(context));
}

TEST_P(Closing, NothingIsLeftOfAStreamThatWasDestroyed) {
  const CUdeviceptr memory = allocate(4096);
  const CUstream other = new_stream();
  ASSERT_OK(fill(other, memory, 1, 16));
  ASSERT_OK(call<FunctionId::cuStreamSynchronize>(other));
  const Duration begin = now();
  for (unsigned round = 2; round < 12; ++round) {
    expect_nothing_left(
        [&] {
          const CUstream stream = new_stream();
          CUresult result = spin(stream, 5ms);
          if (result == CUDA_SUCCESS) result = fill(stream, memory, round, 16);
          if (result != CUDA_SUCCESS) return result;
          return call<FunctionId::cuStreamDestroy_v2>(stream);
        },
        [&] { return query(other); });
    ASSERT_FALSE(HasFatalFailure());
    scheduler().open();
    EXPECT_EQ(word(memory), round);
  }
  EXPECT_LT(now() - begin, 5s) << "it waited for a stream that is no more";
}

TEST_P(Closing, NothingIsLeftWithoutMemoryForMarkers) {
  const CUstream before = new_stream();
  without_memory({"cuEventCreate"});
  const CUstream after = new_stream();
  for (const CUstream stream : {CUstream{}, before, after}) {
    expect_nothing_left([&] { return spin(stream, 30ms); }, [&] { return query(stream); });
  }
}

TEST_P(Closing, NothingIsLeftWithoutMemoryToPlaceThem) {
  const CUstream stream = new_stream();
  scheduler().open();
  ASSERT_OK(spin(stream, 60ms));
  without_memory({"cuEventRecord"});
  std::thread later([] {
    std::this_thread::sleep_for(20ms);
    without_memory({"cuEventRecord"}, false);
  });
  EXPECT_TRUE(scheduler().close());
  EXPECT_OK(query(stream));
  later.join();
}

TEST_P(Closing, NothingIsLeftInTheStreamOfAThreadWithoutMemoryForMarkers) {
  without_memory({"cuEventCreate"});
  std::atomic<bool> called{false};
  expect_nothing_left(
      [&] {
        return Aside(context,
                     [&] {
                       const CUresult result = spin_per_thread(60ms);
                       if (result != CUDA_SUCCESS) return result;
                       return call<FunctionId::cuLaunchHostFunc_ptsz>(CUstream{}, kNote,
                                                                      static_cast<void*>(&called));
                     })
            .result();
      },
      [&] { return called ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; });
}

TEST_P(Closing, NothingIsLeftOfAStreamThatWasDestroyedWithoutMemoryForMarkers) {
  without_memory({"cuEventCreate"});
  std::atomic<bool> called{false};
  expect_nothing_left(
      [&] {
        const CUstream stream = new_stream();
        CUresult result = spin(stream, 60ms);
        if (result == CUDA_SUCCESS) {
          result = call<FunctionId::cuLaunchHostFunc>(stream, kNote, static_cast<void*>(&called));
        }
        if (result != CUDA_SUCCESS) return result;
        return call<FunctionId::cuStreamDestroy_v2>(stream);
      },
      [&] { return called ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; });
}

// Nor is it idle for those who count its time.
TEST_P(Closing, TheGpuIsNotGivenBackWithoutMemoryForMarkers) {
  without_memory({"cuEventCreate"});
  const CUstream stream = new_stream();
  scheduler().open();
  ASSERT_OK(spin(stream, 120ms));
  for (;;) {
    const std::size_t holding = scheduler().holding();
    if (query(stream) != CUDA_ERROR_NOT_READY) break;
    ASSERT_EQ(holding, 1u);
    std::this_thread::sleep_for(1ms);
  }
}

TEST_P(Closing, ThreadsThatWaitAreLetInTogether) {
  ASSERT_TRUE(scheduler().close());
  std::vector<std::unique_ptr<Aside>> callers;
  for (int i = 0; i < 8; ++i) {
    callers.push_back(std::make_unique<Aside>(context, [&] { return spin(nullptr, 1ms); }));
  }
  EXPECT_TRUE(scheduler().wait_for_waiting(1));
  for (const auto& caller : callers) EXPECT_FALSE(caller->returned());
  scheduler().open();
  for (const auto& caller : callers) EXPECT_OK(caller->result());
}

INSTANTIATE_TEST_SUITE_P(Watch, Closing,
                         ::testing::Values(wire::Watch::Metered, wire::Watch::Free));

class Captures : public Preloaded, public ::testing::WithParamInterface<CUstreamCaptureMode> {};

// What is captured does not run, so it is not held back.
TEST_P(Captures, GoOnWhileTheGateIsClosed) {
  const CUdeviceptr memory = allocate(4096);
  const CUstream stream = new_stream();
  ASSERT_OK(fill(stream, memory, 1, 16));
  ASSERT_OK(call<FunctionId::cuStreamSynchronize>(stream));
  ASSERT_TRUE(scheduler().close());
  CUgraphExec executable{};
  Aside capturer(context, [&] {
    CUgraph graph{};
    CUresult result = call<FunctionId::cuStreamBeginCapture_v2>(stream, GetParam());
    if (result == CUDA_SUCCESS) result = fill(stream, memory, 7, 16);
    if (result == CUDA_SUCCESS) {
      result = call<FunctionId::cuMemsetD32Async>(memory + 64, 8u, std::size_t{4}, stream);
    }
    if (result == CUDA_SUCCESS) result = call<FunctionId::cuStreamEndCapture>(stream, &graph);
    if (result != CUDA_SUCCESS) return result;
    return call<FunctionId::cuGraphInstantiateWithFlags>(&executable, graph, 0ull);
  });
  EXPECT_TRUE(eventually([&] { return capturer.returned(); }, 20s)) << "a capture was held back";
  if (!capturer.returned()) scheduler().open();
  ASSERT_OK(capturer.result());

  Aside launcher(context, [&] { return call<FunctionId::cuGraphLaunch>(executable, stream); });
  EXPECT_TRUE(scheduler().wait_for_waiting(1));
  EXPECT_FALSE(launcher.returned());
  scheduler().open();
  ASSERT_OK(launcher.result());
  ASSERT_OK(call<FunctionId::cuStreamSynchronize>(stream));
  EXPECT_EQ(word(memory), 7u);
  EXPECT_EQ(word(memory + 64), 8u);
}

// Draining waits for the GPU, which a thread that captures must not do.
TEST_P(Captures, AreNotBrokenWhenTheGateCloses) {
  const CUdeviceptr memory = allocate(4096);
  const CUstream stream = new_stream();
  const CUstream busy = new_stream();
  for (int round = 0; round < 10; ++round) {
    scheduler().open();
    ASSERT_OK(spin(busy, 10ms));
    ASSERT_OK(call<FunctionId::cuStreamBeginCapture_v2>(stream, GetParam()));
    ASSERT_OK(fill(stream, memory, static_cast<unsigned>(round), 16));
    ASSERT_TRUE(scheduler().close());
    ASSERT_OK(fill(stream, memory + 64, static_cast<unsigned>(round), 16));
    CUstreamCaptureStatus status{};
    ASSERT_OK(call<FunctionId::cuStreamIsCapturing>(stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CUgraph graph{};
    ASSERT_OK(call<FunctionId::cuStreamEndCapture>(stream, &graph));
    std::size_t nodes = 0;
    ASSERT_OK(call<FunctionId::cuGraphGetNodes>(graph, static_cast<CUgraphNode*>(nullptr), &nodes));
    EXPECT_EQ(nodes, 2u) << "only what the program launched is in the graph";
    ASSERT_OK(call<FunctionId::cuGraphDestroy>(graph));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Captures,
                         ::testing::Values(CU_STREAM_CAPTURE_MODE_GLOBAL,
                                           CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                           CU_STREAM_CAPTURE_MODE_RELAXED));

}  // namespace
}  // namespace nvshare::integration
