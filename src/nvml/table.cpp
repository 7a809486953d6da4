#include "nvml/table.h"

#include <string.h>

namespace nvshare::nvml {

const Function kFunctions[kFunctionCount] = {
#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) \
  {FunctionId::symbol, #symbol, Kind::kind},
#include "nvml/functions.def"
};

const Function* find_symbol(const char* symbol) {
  if (symbol == nullptr) return nullptr;
  for (const Function& row : kFunctions) {
    if (strcmp(row.symbol, symbol) == 0) return &row;
  }
  return nullptr;
}

const char* result_name(nvmlReturn_t result) {
  // The rows of all enumerations; those of results are told by how they begin.
  static const struct {
    const char* name;
    unsigned value;
  } kNames[] = {
#define NVSHARE_NVML_VALUE(enumerator, value) {#enumerator, value},
#include "nvml/enums.def"
  };
  for (const auto& row : kNames) {
    const bool is_result =
        strcmp(row.name, "NVML_SUCCESS") == 0 || strncmp(row.name, "NVML_ERROR_", 11) == 0;
    if (is_result && row.value == result) return row.name;
  }
  return nullptr;
}

}  // namespace nvshare::nvml
