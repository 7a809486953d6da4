#pragma once

#include <stdint.h>

#include "nvml/types.h"

namespace nvshare::nvml {

// What a function tells: what whoever stands between a tenant and the library has to know of it.
enum class Kind : uint8_t {
  Init,                // the library's coming and going
  Text,                // needs neither the library initialised nor a device
  System,              // the driver and processes of the machine
  Find,                // hands out devices
  Identity,            // facts of a device that do not change
  Memory,              // how much device memory there is and is used
  Bar1,                // the window through which the host reaches device memory
  Processes,           // who uses the device, and how much memory
  Utilisation,         // how busy the device is
  ProcessUtilisation,  // how busy each process keeps it
  Mode,                // how the device is set
  Physical,            // clocks, heat, power and links
  Topology,            // how devices are joined
};

// One for each row, named by its symbol.
enum class FunctionId : uint16_t {
#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) symbol,
#include "nvml/functions.def"
};

inline constexpr unsigned kFunctionCount = 0
#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) +1
#include "nvml/functions.def"
    ;

struct Function {
  FunctionId id;
  const char* symbol;
  Kind kind;
};

// The table, indexed by FunctionId.
extern const Function kFunctions[kFunctionCount];

// Signature<FunctionId::nvmlDeviceGetName> is the function's type.
template <FunctionId>
struct SignatureOf;
#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) \
  template <>                                                              \
  struct SignatureOf<FunctionId::symbol> {                                 \
    using Type = result parameters;                                        \
  };
#include "nvml/functions.def"
template <FunctionId id>
using Signature = typename SignatureOf<id>::Type;

// The row of an exported symbol, as dlsym is asked for it; null when the table has none.
const Function* find_symbol(const char* symbol);

// "NVML_ERROR_NOT_FOUND", or null for a number that is no result.
const char* result_name(nvmlReturn_t result);

}  // namespace nvshare::nvml
