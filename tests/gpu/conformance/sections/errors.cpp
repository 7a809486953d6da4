// Names and descriptions of results.

#include <cstring>
#include <string>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

struct NamedResult {
  CUresult result;
  const char* name;
};

constexpr NamedResult kResults[] = {
#define NVSHARE_CUDA_ENUM_BEGIN(enumeration, type)
#define NVSHARE_CUDA_VALUE(enumerator, value) {enumerator, #enumerator},
#define NVSHARE_CUDA_ENUM_END(enumeration)
#include "cuda/enums/result.def"
#undef NVSHARE_CUDA_ENUM_BEGIN
#undef NVSHARE_CUDA_VALUE
#undef NVSHARE_CUDA_ENUM_END
};

}  // namespace

void errors(Run& run) {
  const char* text = "untouched";
  const auto no_such_result = static_cast<CUresult>(12345);
  CALL(cuGetErrorName, CUDA_ERROR_OUT_OF_MEMORY, &text);
  run.value("name", text);
  text = nullptr;
  CALL(cuGetErrorString, CUDA_ERROR_OUT_OF_MEMORY, &text);
  run.value("there is a description", text != nullptr && text[0] != '\0');
  text = "untouched";
  CALL(cuGetErrorName, no_such_result, &text);
  run.value("name", text);
  text = "untouched";
  CALL(cuGetErrorString, no_such_result, &text);
  run.value("description", text);
  CALL(cuGetErrorName, CUDA_ERROR_UNKNOWN, nullptr);
  CALL(cuGetErrorString, CUDA_ERROR_UNKNOWN, nullptr);

  run.heading("every result: is the name right, and is there a description");
  for (const NamedResult& each : kResults) {
    const char* name = nullptr;
    const char* description = nullptr;
    QUIET(cuGetErrorName, each.result, &name);
    QUIET(cuGetErrorString, each.result, &description);
    const bool named = name != nullptr && std::strcmp(name, each.name) == 0;
    const bool described = description != nullptr && description[0] != '\0';
    run.value(each.name, std::string(named ? "named" : "not named") +
                             (described ? ", described" : ", not described"));
  }
}

}  // namespace nvshare::conformance
