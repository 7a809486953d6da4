#include "softgpu/api/module_loading.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "softgpu/runtime/memory_ops.h"

namespace nvshare::softgpu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLongestImage = std::size_t{256} << 20;

// Copies a NUL-terminated text from an address that may be anything.
bool read_text(const void* image, std::string& text) {
  auto at = reinterpret_cast<std::uint64_t>(image);
  char page[kPage];
  while (text.size() < kLongestImage) {
    const std::size_t part = kPage - at % kPage;
    if (!safe_read(page, reinterpret_cast<const void*>(at), part)) return false;
    const void* end = std::memchr(page, 0, part);
    if (end != nullptr) {
      text.append(page, static_cast<std::size_t>(static_cast<const char*>(end) - page));
      return true;
    }
    text.append(page, part);
    at += part;
  }
  return false;
}

}  // namespace

CUresult read_image_text(std::string_view text, ModuleText& module, std::string& complaint) {
  const bool is_ptx = text.find(".version") != std::string_view::npos;
  const bool is_ours = text.find("//@softgpu") != std::string_view::npos;
  if (!is_ptx && !is_ours) {
    complaint = "neither PTX nor a module of the software GPU";
    return CUDA_ERROR_INVALID_IMAGE;
  }
  // PTX is not compiled here; that its brackets do not match can be seen all the same.
  if (is_ptx &&
      (std::count(text.begin(), text.end(), '(') != std::count(text.begin(), text.end(), ')') ||
       std::count(text.begin(), text.end(), '{') != std::count(text.begin(), text.end(), '}'))) {
    complaint = "syntax error: brackets do not match";
    return CUDA_ERROR_INVALID_PTX;
  }
  auto parsed = parse_module(text);
  if (!parsed) {
    complaint = parsed.error().message;
    return CUDA_ERROR_INVALID_PTX;
  }
  module = std::move(*parsed);
  return CUDA_SUCCESS;
}

CUresult read_image(const void* image, ModuleText& module, std::string& complaint) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  if (!read_text(image, text)) return CUDA_ERROR_INVALID_IMAGE;
  const bool elf = text.compare(0, 4, "\177ELF") == 0;
  const bool fat = text.compare(0, 4, "\x50\xed\x55\xba") == 0;
  if (elf || fat) {
    complaint = "machine code for a real device";
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  return read_image_text(text, module, complaint);
}

CUresult read_file(const char* path, std::string& content) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  content.assign(std::istreambuf_iterator<char>(file), {});
  return CUDA_SUCCESS;
}

void report_complaint(const std::string& complaint, unsigned count, const CUjit_option* options,
                      void** values) {
  char* buffer = nullptr;
  std::size_t size = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      size = reinterpret_cast<std::size_t>(values[i]) & 0xffffffff;
    }
  }
  if (buffer == nullptr || size == 0) return;
  const std::size_t length = std::min(size - 1, complaint.size());
  std::memcpy(buffer, complaint.data(), length);
  buffer[length] = 0;
}

CUresult load_module(Call& call, const ModuleText& text, std::shared_ptr<Module>& out) {
  Runtime& rt = call.rt;
  auto module = std::make_shared<Module>();
  module->handle = reinterpret_cast<CUmodule>(rt.new_handle());
  module->context = call.ctx;
  for (const GlobalText& global : text.globals) {
    Allocation allocation;
    if (const CUresult result = allocate_device(call, call.ctx->device, global.bytes, allocation);
        result != CUDA_SUCCESS) {
      unload_module(call, *module);
      return result;
    }
    rt.addresses.find(allocation.base)->global = true;
    std::memset(reinterpret_cast<void*>(allocation.base), 0, global.bytes);
    module->globals[global.name] = allocation.base;
  }
  for (const KernelText& kernel : text.kernels) {
    auto function = std::make_shared<Function>();
    function->handle = reinterpret_cast<CUfunction>(rt.new_handle());
    function->module = module;
    function->name = kernel.name;
    function->builtin = find_builtin(kernel.builtin);
    function->params = kernel.params;
    function->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = text.target;
    for (const ParamType type : kernel.params) {
      const std::size_t size = size_of(type);
      function->param_bytes = round_up(function->param_bytes, size);
      function->offsets.push_back(function->param_bytes);
      function->param_bytes += size;
    }
    rt.functions.add(reinterpret_cast<std::uint64_t>(function->handle), function);
    module->functions[kernel.name] = function;
    module->in_order.push_back(function);
  }
  rt.modules.add(reinterpret_cast<std::uint64_t>(module->handle), module);
  out = module;
  return CUDA_SUCCESS;
}

CUresult function_of_kernel(Call& call, const std::shared_ptr<Kernel>& kernel,
                            std::shared_ptr<Function>& out) {
  const auto library = kernel->library.lock();
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  auto& module = library->modules[call.ctx->handle];
  if (!module) {
    SOFTGPU_TRY(load_module(call, library->text, module));
    module->library = library;
  }
  const auto found = module->functions.find(kernel->name);
  if (found == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
  out = found->second;
  return CUDA_SUCCESS;
}

CUresult find_function(Call& call, const void* handle, std::shared_ptr<Function>& out) {
  out = call.rt.functions.find(handle);
  if (out) return CUDA_SUCCESS;
  const auto kernel = call.rt.kernels.find(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  return function_of_kernel(call, kernel, out);
}

int function_attribute(const Function& function, CUfunction_attribute attribute) {
  const auto found = function.attributes.find(attribute);
  if (found != function.attributes.end()) return found->second;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return 16;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return 90;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return 49152;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return -1;
    default:
      return 0;
  }
}

}  // namespace nvshare::softgpu
