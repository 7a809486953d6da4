#include <cstring>

#include "softgpu/api/module_loading.h"
#include "softgpu/runtime/memory_ops.h"

// Modules, and linking of them.
namespace nvshare::softgpu {
namespace {

CUresult load_data(CUmodule* module, const void* image, unsigned num_options,
                   const CUjit_option* options, void** option_values) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (num_options > 0 && (options == nullptr || option_values == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ModuleText text;
  std::string complaint;
  if (const CUresult result = read_image(image, text, complaint); result != CUDA_SUCCESS) {
    report_complaint(complaint, num_options, options, option_values);
    return result;
  }
  std::shared_ptr<Module> loaded;
  SOFTGPU_TRY(load_module(call, text, loaded));
  *module = loaded->handle;
  return CUDA_SUCCESS;
}

}  // namespace

SOFTGPU_API(cuModuleLoadData)(CUmodule* module, const void* image) {
  return load_data(module, image, 0, nullptr, nullptr);
}

SOFTGPU_API(cuModuleLoadDataEx)
(CUmodule* module, const void* image, unsigned num_options, CUjit_option* options,
 void** option_values) {
  return load_data(module, image, num_options, options, option_values);
}

SOFTGPU_API(cuModuleLoadFatBinary)(CUmodule* module, const void* fat_cubin) {
  return load_data(module, fat_cubin, 0, nullptr, nullptr);
}

SOFTGPU_API(cuModuleLoad)(CUmodule* module, const char* fname) {
  std::string content;
  {
    Call call;
    SOFTGPU_TRY(call.context());
    if (module == nullptr || fname == nullptr) return CUDA_ERROR_INVALID_VALUE;
    SOFTGPU_TRY(read_file(fname, content));
  }
  return load_data(module, content.c_str(), 0, nullptr, nullptr);
}

SOFTGPU_API(cuModuleUnload)(CUmodule module) {
  Call call;
  SOFTGPU_TRY(call.context());
  SOFTGPU_TRY(call.no_unsafe_capture());
  const auto found = call.rt.modules.find(module);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (found->library.lock()) return CUDA_ERROR_NOT_PERMITTED;
  call.rt.wait_all(call.lock, call.ctx.get());
  call.rt.wait_for_effects(call.lock);
  unload_module(call, *found);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuModuleGetLoadingMode)(CUmoduleLoadingMode* mode) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* wanted = std::getenv("CUDA_MODULE_LOADING");
  const bool eager = wanted != nullptr && std::strcmp(wanted, "EAGER") == 0;
  *mode = eager ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuModuleGetFunction)(CUfunction* function, CUmodule module, const char* name) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  if (*name == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.modules.find(module);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  const auto entry = found->functions.find(name);
  if (entry == found->functions.end()) return CUDA_ERROR_NOT_FOUND;
  *function = entry->second->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuModuleGetFunctionCount)(unsigned* count, CUmodule module) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.modules.find(module);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *count = static_cast<unsigned>(found->in_order.size());
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuModuleEnumerateFunctions)
(CUfunction* functions, unsigned num_functions, CUmodule module) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (functions == nullptr || num_functions == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.modules.find(module);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  for (unsigned i = 0; i < num_functions; ++i) {
    functions[i] = i < found->in_order.size() ? found->in_order[i]->handle : nullptr;
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuModuleGetGlobal_v2)
(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.modules.find(module);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  const auto global = found->globals.find(name);
  if (found->functions.count(name) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (global == found->globals.end()) return CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = global->second;
  if (bytes != nullptr) *bytes = call.rt.addresses.find(global->second)->bytes;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLinkCreate_v2)
(unsigned num_options, CUjit_option* options, void** option_values, CUlinkState* state_out) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (state_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (num_options > 0 && (options == nullptr || option_values == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t handle = call.rt.new_handle();
  call.rt.links.add(handle, std::make_shared<LinkState>());
  *state_out = reinterpret_cast<CUlinkState>(handle);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLinkAddData_v2)
(CUlinkState state, CUjitInputType type, void* data, size_t size, const char*, unsigned,
 CUjit_option*, void**) {
  Call call;
  SOFTGPU_TRY(call.context());
  const auto link = call.rt.links.find(state);
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  if (data == nullptr || size == 0 || type >= CU_JIT_NUM_INPUT_TYPES) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::string text(size, '\0');
  if (!safe_read(text.data(), data, size)) return CUDA_ERROR_INVALID_VALUE;
  while (!text.empty() && text.back() == '\0') text.pop_back();
  ModuleText parsed;
  std::string complaint;
  SOFTGPU_TRY(read_image_text(text, parsed, complaint));
  link->text += text + "\n";
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLinkAddFile_v2)
(CUlinkState state, CUjitInputType type, const char* path, unsigned num_options,
 CUjit_option* options, void** option_values) {
  std::string content;
  SOFTGPU_TRY(read_file(path, content));
  return impl_cuLinkAddData_v2(state, type, content.data(), content.size(), path, num_options,
                               options, option_values);
}

SOFTGPU_API(cuLinkComplete)(CUlinkState state, void** cubin_out, size_t* size_out) {
  Call call;
  SOFTGPU_TRY(call.context());
  const auto link = call.rt.links.find(state);
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  if (cubin_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // What comes out is the text again: the software GPU loads no machine code.
  link->output = link->text;
  *cubin_out = link->output.data();
  if (size_out != nullptr) *size_out = link->output.size() + 1;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLinkDestroy)(CUlinkState state) {
  Call call;
  SOFTGPU_TRY(call.ready());
  return call.rt.links.remove(state) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace nvshare::softgpu
