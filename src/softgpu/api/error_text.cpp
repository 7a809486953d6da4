#include "softgpu/api/error_text.h"

#include <cctype>
#include <cstring>
#include <map>
#include <string>

#include "cuda/table.h"

namespace nvshare::softgpu {

// The name in plain words: CUDA_ERROR_INVALID_VALUE is "invalid value".
const char* error_text(cuda::CUresult result) {
  static constexpr const char* kPrefix = "CUDA_ERROR_";
  static const std::map<unsigned, std::string> kTexts = [] {
    std::map<unsigned, std::string> texts{{0, "no error"}};
    for (unsigned number = 1; number < 1000; ++number) {
      const char* name = cuda::result_name(static_cast<cuda::CUresult>(number));
      if (name == nullptr) continue;
      std::string& text = texts[number];
      for (const char* at = name + std::strlen(kPrefix); *at != 0; ++at) {
        text += *at == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(*at)));
      }
    }
    return texts;
  }();
  const auto found = kTexts.find(static_cast<unsigned>(result));
  return found == kTexts.end() ? nullptr : found->second.c_str();
}

}  // namespace nvshare::softgpu
