#include "integration/preloaded.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "wire/channel.h"

namespace nvshare::integration {
namespace {

template <typename Function>
Function* helper(const char* name) {
  static void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* found = library == nullptr ? nullptr : ::dlsym(library, name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace

FakeScheduler& scheduler() {
  static FakeScheduler one(std::getenv(wire::kRunDirectoryVariable));
  return one;
}

const Driver& driver() {
  static const Driver one = [] {
    Driver made;
    const std::string error = made.open(false);
    EXPECT_EQ(error, "");
    return made;
  }();
  return one;
}

unsigned long calls_of(const char* symbol) {
  auto* count = helper<unsigned long(const char*)>("softgpuCallCount");
  return count == nullptr ? 0 : count(symbol);
}

void fail_calls(const char* symbol, int calls) {
  if (auto* fail = helper<void(const char*, int)>("softgpuFailCalls")) fail(symbol, calls);
}

bool is_implemented(const char* symbol) {
  auto* known = helper<int(const char*)>("softgpuIsImplemented");
  return known != nullptr && known(symbol) != 0;
}

void Preloaded::SetUp() {
  scheduler().open();
  ASSERT_OK(call<FunctionId::cuInit>(0u));
  ASSERT_OK(call<FunctionId::cuDevicePrimaryCtxRetain>(&context, 0));
  ASSERT_OK(call<FunctionId::cuCtxSetCurrent>(context));
  CUmodule module{};
  ASSERT_OK(
      call<FunctionId::cuModuleLoadData>(&module, static_cast<const void*>(programs::kJobKernels)));
  ASSERT_OK(call<FunctionId::cuModuleGetFunction>(&noop_kernel, module, "noop"));
  ASSERT_OK(call<FunctionId::cuModuleGetFunction>(&spin_kernel, module, "spin"));
  ASSERT_OK(call<FunctionId::cuModuleGetFunction>(&fill_kernel, module, "fill32"));
  // The first work makes it connect.
  ASSERT_OK(spin(nullptr, 1us));
  ASSERT_TRUE(scheduler().wait_for_clients(1)) << scheduler().complaints();
}

void Preloaded::TearDown() {
  scheduler().open();
  EXPECT_OK(call<FunctionId::cuCtxSynchronize>());
  EXPECT_EQ(scheduler().complaints(), "");
}

CUresult Preloaded::spin(CUstream stream, Duration length) {
  auto nanoseconds = static_cast<std::uint64_t>(length.count());
  void* params[] = {&nanoseconds};
  return call<FunctionId::cuLaunchKernel>(spin_kernel, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, params,
                                          static_cast<void**>(nullptr));
}

CUresult Preloaded::spin_per_thread(Duration length) {
  auto nanoseconds = static_cast<std::uint64_t>(length.count());
  void* params[] = {&nanoseconds};
  return call<FunctionId::cuLaunchKernel_ptsz>(spin_kernel, 1u, 1u, 1u, 1u, 1u, 1u, 0u, CUstream{},
                                               params, static_cast<void**>(nullptr));
}

CUresult Preloaded::fill(CUstream stream, CUdeviceptr to, unsigned value, std::uint64_t words) {
  void* params[] = {&to, &value, &words};
  return call<FunctionId::cuLaunchKernel>(fill_kernel, 1u, 1u, 1u, 32u, 1u, 1u, 0u, stream, params,
                                          static_cast<void**>(nullptr));
}

CUdeviceptr Preloaded::allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_OK(call<FunctionId::cuMemAlloc_v2>(&address, bytes));
  return address;
}

CUstream Preloaded::new_stream(unsigned flags) {
  CUstream stream{};
  EXPECT_OK(call<FunctionId::cuStreamCreate>(&stream, flags));
  return stream;
}

unsigned Preloaded::word(CUdeviceptr address) {
  unsigned value = 0;
  EXPECT_OK(call<FunctionId::cuMemcpyDtoH_v2>(static_cast<void*>(&value), address, sizeof value));
  return value;
}

Aside::Aside(CUcontext context, std::function<CUresult()> body)
    : future_(std::async(std::launch::async, [context, body = std::move(body)] {
        driver().call<FunctionId::cuCtxSetCurrent>(context);
        return body();
      })) {}

Aside::~Aside() {
  if (future_.valid()) result();
}

bool Aside::returned() const {
  return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

CUresult Aside::result() {
  if (future_.wait_for(std::chrono::minutes(1)) != std::future_status::ready) {
    std::fputs("a call has not come back within a minute\n", stderr);
    ::_exit(1);
  }
  return future_.get();
}

}  // namespace nvshare::integration
