#include "interposer/catch/hooks.h"

#include <type_traits>

#include "interposer/catch/bodies.h"
#include "interposer/catch/driver.h"
#include "interposer/gate/gate.h"
#include "interposer/memory/driver_room.h"

// The driver's symbols, exported: each call is handed to its own body, taken through the gate, or
// passed on, as the table says. All is decided while compiling.
namespace nvshare::interposer::catching {

namespace {

constexpr bool has_own_body(FunctionId id) {
  switch (id) {
#define NVSHARE_OWN_BODY(symbol) case FunctionId::symbol:
#include "interposer/catch/own_bodies.def"
    return true;
    default:
      return false;
  }
}

// Whether calls of this kind make the GPU work.
constexpr bool is_work(Kind kind) {
  switch (kind) {
    case Kind::Launch:
    case Kind::GraphLaunch:
    case Kind::GraphUpload:
    case Kind::Copy:
    case Kind::Memset:
    case Kind::Prefetch:
    case Kind::HostFunc:
    case Kind::StreamOp:
      return true;
    default:
      return false;
  }
}

// What work needs. Kernels are given addresses that the driver does not understand, and prefetched
// is only memory that does not leave by our hand.
constexpr gate::Needs needs_of(Kind kind) {
  switch (kind) {
    case Kind::Copy:
    case Kind::Memset:
    case Kind::StreamOp:
      return gate::Needs::kTurnAndMemory;
    default:
      return gate::Needs::kTurn;
  }
}

// Whether the driver may take memory of its own for calls of this kind. While a program runs free
// it is alone on its device, and nobody could make room: the short way through the gate asks for
// none.
constexpr bool may_take_memory(Kind kind) {
  switch (kind) {
    case Kind::Context:
    case Kind::Module:
    case Kind::Stream:
    case Kind::Graph:
    case Kind::Bind:
    case Kind::Import:
      return true;
    default:
      return is_work(kind);
  }
}

// What an argument says about the stream: most say nothing.
template <typename Argument>
void look_for_stream(CUstream& stream, Argument argument) {
  if constexpr (std::is_same_v<Argument, CUstream>) {
    stream = argument;
  } else if constexpr (std::is_same_v<Argument, const CUlaunchConfig*> ||
                       std::is_same_v<Argument, CUDA_LAUNCH_PARAMS*>) {
    // Of a list of launches on several devices, the first.
    if (argument != nullptr) stream = argument->hStream;
  }
}

template <Flavour flavour, typename... Arguments>
gate::Destination destination_of(Arguments... arguments) {
  gate::Destination destination{nullptr, flavour == Flavour::Ptds || flavour == Flavour::Ptsz};
  (look_for_stream(destination.stream, arguments), ...);
  return destination;
}

template <FunctionId id, Kind kind, Flavour flavour, typename... Arguments>
__attribute__((noinline, cold)) CUresult pass_slowly(Arguments... arguments) {
  const gate::Destination destination = destination_of<flavour>(arguments...);
  return memory::with_room(destination, [&] {
    const gate::Passage passage(destination, needs_of(kind));
    if (passage.refused()) return gate::Passage::kRefused;
    return real<id>(arguments...);
  });
}

template <FunctionId id, Kind kind, Flavour flavour, typename... Arguments>
inline CUresult pass(Arguments... arguments) {
  if constexpr (is_work(kind)) {
    if (gate::Slot* slot = gate::enter_free()) {
      const CUresult result = real<id>(arguments...);
      gate::leave_free(slot);
      return result;
    }
    return pass_slowly<id, kind, flavour>(arguments...);
  } else if constexpr (kind == Kind::Bind) {
    return memory::real_with_memory<id>(arguments...);
  } else if constexpr (may_take_memory(kind)) {
    return memory::real_with_room<id>(arguments...);
  } else {
    return real<id>(arguments...);
  }
}

}  // namespace

#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  extern "C" __attribute__((visibility("default"))) CUresult symbol parameters {         \
    if constexpr (has_own_body(FunctionId::symbol)) {                                    \
      return own::symbol arguments;                                                      \
    } else {                                                                             \
      return pass<FunctionId::symbol, Kind::kind, Flavour::flavour> arguments;           \
    }                                                                                    \
  }
#include "cuda/functions.def"

void* hook(FunctionId id) {
  static void* const all[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  reinterpret_cast<void*>(static_cast<Signature<FunctionId::symbol>*>(symbol)),
#include "cuda/functions.def"
  };
  return all[static_cast<unsigned>(id)];
}

}  // namespace nvshare::interposer::catching

extern "C" __attribute__((visibility("default"))) const char* const nvshare_library_version =
    NVSHARE_VERSION;
