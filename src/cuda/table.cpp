#include "cuda/table.h"

#include <string.h>

namespace nvshare::cuda {

const Function kFunctions[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  {FunctionId::symbol, #name, #symbol, since, Flavour::flavour, Kind::kind},
#include "cuda/functions.def"
};

namespace {

// The best answer so far to one question of find().
struct Search {
  const char* name;
  int version;
  bool known = false;
  bool has_twin = false;
  const Function* best[2] = {};  // plain, twin

  void consider(const Function& candidate) {
    if (strcmp(name, candidate.name) != 0) return;
    known = true;
    const bool twin = candidate.flavour == Flavour::Ptds || candidate.flavour == Flavour::Ptsz;
    has_twin = has_twin || twin;
    if (candidate.since > version) return;
    if (best[twin] == nullptr || candidate.since > best[twin]->since) best[twin] = &candidate;
  }
};

}  // namespace

Resolution find(const char* name, int version, uint64_t flags) {
  if (name == nullptr) return {CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, nullptr};
  Search search{name, version};
  for (const Function& row : kFunctions) search.consider(row);
  if (!search.known) return {CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, nullptr};
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Function* best = search.best[per_thread && search.has_twin];
  if (best == nullptr) return {CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, nullptr};
  return {CU_GET_PROC_ADDRESS_SUCCESS, best};
}

const Function* find_symbol(const char* symbol) {
  // Asked on every dlsym of a program: most symbols are not the driver's.
  if (symbol == nullptr || symbol[0] != 'c' || symbol[1] != 'u') return nullptr;
  for (const Function& row : kFunctions) {
    if (strcmp(symbol, row.symbol) == 0) return &row;
  }
  return nullptr;
}

const char* result_name(CUresult result) {
  switch (static_cast<int>(result)) {
#define NVSHARE_CUDA_ENUM_BEGIN(enumeration, type)
#define NVSHARE_CUDA_VALUE(enumerator, value) \
  case value:                                 \
    return #enumerator;
#define NVSHARE_CUDA_ENUM_END(enumeration)
#include "cuda/enums/result.def"
#undef NVSHARE_CUDA_ENUM_BEGIN
#undef NVSHARE_CUDA_VALUE
#undef NVSHARE_CUDA_ENUM_END
    default:
      return nullptr;
  }
}

}  // namespace nvshare::cuda
