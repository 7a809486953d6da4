#include <initializer_list>

#include "interposer/catch/bodies.h"
#include "interposer/catch/driver.h"
#include "interposer/catch/hooks.h"
#include "interposer/guest/sys.h"

// cuGetProcAddress, by which the runtime and most programs come to everything. The driver says what
// there is; what it hands out is exchanged for ours.
namespace nvshare::interposer::own {
using namespace catching;

namespace {

// The newest CUDA version that the table knows.
constexpr int newest_known() {
  int newest = 0;
  for (const int since : {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) since,
#include "cuda/functions.def"
       }) {
    if (since > newest) newest = since;
  }
  return newest;
}

struct Question {
  const char* name;
  int version;
  uint64_t flags;
};

// What the driver answers; null when nothing.
void* ask_driver(const Question& question) {
  void* found = nullptr;
  const CUresult result =
      driver_has(FunctionId::cuGetProcAddress_v2)
          ? real<FunctionId::cuGetProcAddress_v2>(question.name, &found, question.version,
                                                  question.flags, nullptr)
          : real<FunctionId::cuGetProcAddress>(question.name, &found, question.version,
                                               question.flags);
  return result == CUDA_SUCCESS ? found : nullptr;
}

const Function* row_at(const void* address, const Function* likely) {
  const auto is_it = [address](const Function& row) {
    return g_driver[static_cast<unsigned>(row.id)] == address;
  };
  if (likely != nullptr && is_it(*likely)) return likely;
  for (const Function& row : kFunctions) {
    if (is_it(row)) return &row;
  }
  return nullptr;
}

// The row that the driver's answer to a question is; null when the table does not have it.
const Function* row_of(const void* found, Question question) {
  constexpr int kNewestKnown = newest_known();
  // Below zero stands for the newest that the driver has.
  const bool newer = question.version < 0 || question.version > kNewestKnown;
  if (newer) question.version = kNewestKnown;
  const Function* likely = cuda::find(question.name, question.version, question.flags).function;
  // Drivers hand out what they export. One that did not would still follow the rule of versions,
  // as far as the table knows them.
  if (const Function* row = row_at(found, likely); row != nullptr) return row;
  if (likely == nullptr || !driver_has(likely->id)) return nullptr;
  return newer && ask_driver(question) != found ? nullptr : likely;
}

void exchange(void** function, const Question& question) {
  if (*function == nullptr) return;
  const Function* row = row_of(*function, question);
  if (row != nullptr) {
    *function = hook(row->id);
  } else {
    log("%s of CUDA %d is not known here and not watched", question.name, question.version);
  }
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** function, int cuda_version, uint64_t flags) {
  const CUresult result = real<FunctionId::cuGetProcAddress>(symbol, function, cuda_version, flags);
  if (result == CUDA_SUCCESS) exchange(function, {symbol, cuda_version, flags});
  return result;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult* symbol_status) {
  const CUresult result =
      real<FunctionId::cuGetProcAddress_v2>(symbol, function, cuda_version, flags, symbol_status);
  if (result == CUDA_SUCCESS) exchange(function, {symbol, cuda_version, flags});
  return result;
}

}  // namespace nvshare::interposer::own
