#include "interposer/catch/hooks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "abi/pattern.h"
#include "interposer/catch/bodies.h"
#include "interposer/catch/driver.h"
#include "interposer/gate/gate.h"
#include "interposer/memory/driver_room.h"

// Every function of the table, with a driver and a gate of the test's own: which go through the
// gate, to which stream, which to a body of their own, that all arrive, and which are made again
// when the driver had no memory for them.
namespace nvshare::interposer {

namespace {

// What one call met on its way.
struct Way {
  int entered = 0;
  int left = 0;
  gate::Destination to;
  gate::Needs needs{};
  int own = 0;
  int without_memory = 0;  // so often the driver has none
  int rooms = 0;           // that were asked for
  int inside = 0;          // of those, from inside the gate
};
Way way;

template <FunctionId id, typename... Arguments>
CUresult driver_function(Arguments... arguments) {
  if (way.without_memory > 0) {
    --way.without_memory;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return static_cast<CUresult>(abi::digest(static_cast<unsigned>(id), arguments...));
}

template <FunctionId id, typename... Arguments>
void* driver_address(CUresult (*)(Arguments...)) {
  return reinterpret_cast<void*>(&driver_function<id, Arguments...>);
}

}  // namespace

void* catching::g_driver[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  driver_address<FunctionId::symbol>(static_cast<Signature<FunctionId::symbol>*>(nullptr)),
#include "cuda/functions.def"
};

constinit thread_local gate::Slot* gate::t_slot = nullptr;
std::atomic<gate::Gate*> gate::g_only_gate{nullptr};

gate::Passage::Passage(Destination destination, Needs needs) {
  ++way.entered;
  way.needs = needs;
  way.to = destination;
}
gate::Passage::~Passage() {
  ++way.left;
}

bool memory::DriverRoom::more(gate::Destination destination) {
  ++way.rooms;
  way.inside += way.entered - way.left;
  EXPECT_EQ(destination.stream, way.to.stream);
  EXPECT_EQ(destination.per_thread, way.to.per_thread);
  return true;
}
void memory::DriverRoom::give_back() {}

#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  CUresult own::symbol parameters {                                                      \
    ++way.own;                                                                           \
    return real<FunctionId::symbol> arguments;                                           \
  }
#include "cuda/functions.def"

namespace catching {
namespace {

bool has_own_body(FunctionId id) {
  static const FunctionId all[] = {
#define NVSHARE_OWN_BODY(symbol) FunctionId::symbol,
#include "interposer/catch/own_bodies.def"
  };
  return std::find(std::begin(all), std::end(all), id) != std::end(all);
}

bool is_for_the_gate(Kind kind) {
  return kind == Kind::Launch || kind == Kind::GraphLaunch || kind == Kind::GraphUpload ||
         kind == Kind::Copy || kind == Kind::Memset || kind == Kind::Prefetch ||
         kind == Kind::HostFunc || kind == Kind::StreamOp || kind == Kind::Bind;
}

gate::Needs needs_of(Kind kind) {
  if (kind == Kind::Bind) return gate::Needs::kMemory;
  const bool looks = kind == Kind::Copy || kind == Kind::Memset || kind == Kind::StreamOp;
  return looks ? gate::Needs::kTurnAndMemory : gate::Needs::kTurn;
}

bool may_take_memory(Kind kind) {
  return is_for_the_gate(kind) || kind == Kind::Context || kind == Kind::Module ||
         kind == Kind::Stream || kind == Kind::Graph || kind == Kind::Import;
}

struct Expected {
  int streams = 0;
  CUstream stream = nullptr;
};

template <typename Argument>
void expect(Expected& expected, Argument argument) {
  if constexpr (std::is_same_v<Argument, CUstream>) {
    ++expected.streams;
    expected.stream = argument;
  } else if constexpr (std::is_same_v<Argument, const CUlaunchConfig*> ||
                       std::is_same_v<Argument, CUDA_LAUNCH_PARAMS*>) {
    ++expected.streams;
    expected.stream = argument->hStream;
  }
}

// With a driver that has no memory at first.
template <FunctionId id, typename... Arguments>
void call_without_memory(Arguments... arguments) {
  const Function& row = function(id);
  const bool again = may_take_memory(row.kind) && !has_own_body(id);
  way = {};
  way.without_memory = 2;
  const CUresult result = reinterpret_cast<CUresult (*)(Arguments...)>(hook(id))(arguments...);
  const CUresult arrived =
      static_cast<CUresult>(abi::digest(static_cast<unsigned>(id), arguments...));
  EXPECT_EQ(result, again ? arrived : CUDA_ERROR_OUT_OF_MEMORY) << row.symbol;
  EXPECT_EQ(way.rooms, again ? 2 : 0) << row.symbol;
  EXPECT_EQ(way.inside, 0) << row.symbol;
  EXPECT_EQ(way.left, way.entered) << row.symbol;
}

template <FunctionId id, typename... Arguments, std::size_t... place>
void call(CUresult (*)(Arguments...), std::index_sequence<place...>) {
  constexpr auto number = static_cast<unsigned>(id);
  const Function& row = function(id);
  const auto make = [&](Arguments... arguments) {
    Expected expected;
    (expect(expected, arguments), ...);
    way = {};
    const CUresult result = reinterpret_cast<CUresult (*)(Arguments...)>(hook(id))(arguments...);
    EXPECT_EQ(static_cast<unsigned>(result), abi::digest(number, arguments...)) << row.symbol;
    EXPECT_EQ(way.own, has_own_body(id) ? 1 : 0) << row.symbol;
    const bool gated = is_for_the_gate(row.kind) && !has_own_body(id);
    EXPECT_EQ(way.entered, gated ? 1 : 0) << row.symbol;
    EXPECT_EQ(way.left, way.entered) << row.symbol;
    if (!gated) return;
    EXPECT_LE(expected.streams, 1) << row.symbol;
    EXPECT_EQ(way.to.stream, expected.stream) << row.symbol;
    EXPECT_EQ(way.needs, needs_of(row.kind)) << row.symbol;
    EXPECT_EQ(way.to.per_thread, row.flavour == Flavour::Ptds || row.flavour == Flavour::Ptsz)
        << row.symbol;
  };
  make(abi::pattern<Arguments>(number, place)...);
  call_without_memory<id, Arguments...>(abi::pattern<Arguments>(number, place)...);
}

template <FunctionId id, typename... Arguments>
void call(CUresult (*type)(Arguments...)) {
  call<id>(type, std::index_sequence_for<Arguments...>());
}

TEST(Hooks, WorkGoesThroughTheGateAndEverythingArrives) {
  abi::some_config.hStream = stream_per_thread();
  abi::some_launch.hStream = stream_legacy();
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  call<FunctionId::symbol>(static_cast<Signature<FunctionId::symbol>*>(nullptr));
#include "cuda/functions.def"
}

TEST(Hooks, NullPointersAreTheDriversBusiness) {
  way = {};
  reinterpret_cast<Signature<FunctionId::cuLaunchKernelEx>*>(hook(FunctionId::cuLaunchKernelEx))(
      nullptr, nullptr, nullptr, nullptr);
  EXPECT_EQ(way.entered + way.own, 1);
  way = {};
  reinterpret_cast<Signature<FunctionId::cuLaunchCooperativeKernelMultiDevice>*>(
      hook(FunctionId::cuLaunchCooperativeKernelMultiDevice))(nullptr, 0, 0);
  EXPECT_EQ(way.entered + way.own, 1);
}

TEST(Hooks, AFreeGateIsPassedWithoutTheSlowWay) {
  gate::Slot slot;
  gate::Gate gate;
  gate.state = gate::kFree;
  gate::t_slot = &slot;
  gate::g_only_gate = &gate;
  way = {};
  const auto launch =
      reinterpret_cast<Signature<FunctionId::cuLaunchKernel>*>(hook(FunctionId::cuLaunchKernel));
  launch(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  EXPECT_EQ(way.entered, 0);
  EXPECT_EQ(slot.inside.load(), nullptr);
  EXPECT_EQ(slot.passes, 1U);
  // Alone there is nobody who could make room.
  way.without_memory = 1;
  EXPECT_EQ(launch(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(way.rooms, 0);
  EXPECT_EQ(slot.inside.load(), nullptr);
  gate.state = gate::kClosed;
  launch(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  EXPECT_EQ(way.entered + way.own, 1);
  gate::t_slot = nullptr;
  gate::g_only_gate = nullptr;
}

}  // namespace
}  // namespace catching
}  // namespace nvshare::interposer
