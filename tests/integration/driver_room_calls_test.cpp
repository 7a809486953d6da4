#include <dlfcn.h>

#include <string_view>

#include "integration/process.h"
#include "integration/roads.h"

// Calls for which the driver has no memory of its own, in a program under the library: they are
// made again when room has been asked for.
namespace nvshare::integration {
namespace {

class DriverRoomCalls : public WithThings {
 protected:
  // The driver has no memory for the first of them.
  template <typename Call>
  CUresult short_of_memory(const char* symbol, const Call& call) {
    const std::uint64_t pinned = scheduler().pinned();
    const std::uint64_t told = scheduler().told_of_memory();
    const unsigned long calls = calls_of(symbol);
    fail_calls(symbol, 1);
    const CUresult result = call(::dlsym(library, symbol));
    EXPECT_EQ(calls_of(symbol), calls + 2) << symbol;
    EXPECT_GT(scheduler().told_of_memory(), told) << symbol;
    EXPECT_TRUE(eventually([&] { return scheduler().pinned() == pinned; }, 20s)) << symbol;
    return result;
  }
  template <FunctionId id, typename... Arguments>
  CUresult short_call(Arguments... arguments) {
    return short_of_memory(function(id).symbol, [&](void* symbol) {
      return reinterpret_cast<Signature<id>*>(symbol)(arguments...);
    });
  }
};

TEST_F(DriverRoomCalls, ThatMakeTheGpuWork) {
  for (const Function& row : kFunctions) {
    if (!makes_the_gpu_work(row.kind) || !is_implemented(row.symbol)) continue;
    const auto road = road_of(row);
    ASSERT_TRUE(road) << row.symbol;
    EXPECT_OK(short_of_memory(row.symbol, [&](void* symbol) { return (*road)(symbol, things); }))
        << row.symbol;
    EXPECT_OK(call<FunctionId::cuCtxSynchronize>());
  }
}

// Those that the driver refuses for what they are given reach it once more as well.
TEST_F(DriverRoomCalls, ThatLoadCodeOrMakeThings) {
  int walked = 0;
  for (const Function& row : kFunctions) {
    const bool takes = row.kind == Kind::Module || row.kind == Kind::Stream ||
                       row.kind == Kind::Graph || row.kind == Kind::Bind ||
                       row.kind == Kind::Import;
    const bool gives = std::string_view(row.symbol).find("Destroy") != std::string_view::npos;
    if (!takes || gives) continue;
    const CUresult result =
        short_of_memory(row.symbol, [&](void* symbol) { return call_with_zeros(row.id, symbol); });
    EXPECT_NE(result, CUDA_ERROR_OUT_OF_MEMORY) << row.symbol;
    ++walked;
  }
  EXPECT_GT(walked, 120) << "so many there were when this was written";
}

TEST_F(DriverRoomCalls, ThatMakeContexts) {
  CUcontext made{};
  EXPECT_OK((short_call<FunctionId::cuDevicePrimaryCtxRetain>(&made, 0)));
  EXPECT_EQ(made, context);
  EXPECT_OK(call<FunctionId::cuDevicePrimaryCtxRelease_v2>(0));
  EXPECT_OK((short_call<FunctionId::cuCtxCreate_v2>(&made, 0u, 0)));
  EXPECT_OK(call<FunctionId::cuCtxDestroy_v2>(made));
  EXPECT_OK((short_call<FunctionId::cuCtxSetLimit>(CU_LIMIT_STACK_SIZE, std::size_t{4096})));
  ASSERT_OK(call<FunctionId::cuCtxSetCurrent>(context));
}

TEST_F(DriverRoomCalls, ThatFailOnceMoreSaySo) {
  const std::uint64_t before = scheduler().told_no_room();
  fail_calls("cuLaunchKernel", 1);
  EXPECT_OK(spin(nullptr, 1us));
  EXPECT_EQ(scheduler().told_no_room(), before) << "nobody had promised it any";
  fail_calls("cuLaunchKernel", 3);
  EXPECT_OK(spin(nullptr, 1us));
  EXPECT_EQ(scheduler().told_no_room(), before + 2);
  fail_calls("cuLaunchKernel", 4);
  EXPECT_EQ(spin(nullptr, 1us), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_OK(spin(nullptr, 1us));
}

// Who waits for room holds up nobody: the GPU is given back meanwhile.
TEST_F(DriverRoomCalls, ThatWaitAreNotInsideTheGate) {
  const CUdeviceptr memory = allocate(4096);
  scheduler().keep_waiting(true);
  fail_calls("cuLaunchKernel", 1);
  Aside caller(context, [&] { return fill(nullptr, memory, 7, 16); });
  EXPECT_TRUE(scheduler().wait_for_requests(1));
  EXPECT_TRUE(scheduler().close()) << "the GPU was not given back";
  EXPECT_FALSE(caller.returned());
  scheduler().keep_waiting(false);
  EXPECT_TRUE(scheduler().wait_for_waiting(1)) << "it did not pass the gate anew";
  EXPECT_FALSE(caller.returned());
  scheduler().open();
  EXPECT_OK(caller.result());
  EXPECT_EQ(word(memory), 7u);
}

TEST_F(DriverRoomCalls, ThatAreCapturedAreNotHeldUp) {
  const CUstream stream = new_stream();
  const std::uint64_t told = scheduler().told_of_memory();
  ASSERT_OK(call<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  fail_calls("cuLaunchKernel", 1);
  EXPECT_EQ(spin(stream, 1us), CUDA_ERROR_OUT_OF_MEMORY);
  CUgraph graph{};
  EXPECT_OK(call<FunctionId::cuStreamEndCapture>(stream, &graph));
  EXPECT_OK(call<FunctionId::cuGraphDestroy>(graph));
  EXPECT_EQ(scheduler().told_of_memory(), told);
}

}  // namespace
}  // namespace nvshare::integration
