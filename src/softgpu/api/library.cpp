#include <algorithm>

#include "softgpu/api/module_loading.h"
#include "softgpu/runtime/memory_ops.h"

// Libraries and their kernels: modules that belong to no context.
namespace nvshare::softgpu {
namespace {

CUresult load(CUlibrary* library, const void* code, unsigned num_jit_options,
              const CUjit_option* jit_options, void** jit_values) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (num_jit_options > 0 && (jit_options == nullptr || jit_values == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto made = std::make_shared<Library>();
  std::string complaint;
  const CUresult result = read_image(code, made->text, complaint);
  // What is no module at all is only noticed when something of it is wanted.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_IMAGE) {
    report_complaint(complaint, num_jit_options, jit_options, jit_values);
    return result;
  }
  made->handle = reinterpret_cast<CUlibrary>(call.rt.new_handle());
  for (const KernelText& text : made->text.kernels) {
    auto kernel = std::make_shared<Kernel>();
    kernel->handle = reinterpret_cast<CUkernel>(call.rt.new_handle());
    kernel->library = made;
    kernel->name = text.name;
    call.rt.kernels.add(reinterpret_cast<std::uint64_t>(kernel->handle), kernel);
    made->kernels[text.name] = kernel;
    made->in_order.push_back(kernel);
  }
  call.rt.libraries.add(reinterpret_cast<std::uint64_t>(made->handle), made);
  *library = made->handle;
  return CUDA_SUCCESS;
}

// The library's module in the current context.
CUresult module_of(Call& call, const std::shared_ptr<Library>& library,
                   std::shared_ptr<Module>& out) {
  auto& module = library->modules[call.ctx->handle];
  if (!module) {
    SOFTGPU_TRY(load_module(call, library->text, module));
    module->library = library;
  }
  out = module;
  return CUDA_SUCCESS;
}

CUresult kernel_and_device(Call& call, CUkernel handle, CUdevice device,
                           std::shared_ptr<Kernel>& kernel) {
  SOFTGPU_TRY(call.ready());
  kernel = call.rt.kernels.find(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  return call.device(device);
}

}  // namespace

SOFTGPU_API(cuLibraryLoadData)
(CUlibrary* library, const void* code, CUjit_option* jit_options, void** jit_options_values,
 unsigned num_jit_options, CUlibraryOption* library_options, void** library_option_values,
 unsigned num_library_options) {
  if (num_library_options > 0 && (library_options == nullptr || library_option_values == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return load(library, code, num_jit_options, jit_options, jit_options_values);
}

SOFTGPU_API(cuLibraryLoadFromFile)
(CUlibrary* library, const char* file_name, CUjit_option* jit_options, void** jit_options_values,
 unsigned num_jit_options, CUlibraryOption*, void**, unsigned) {
  if (library == nullptr || file_name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string content;
  SOFTGPU_TRY(read_file(file_name, content));
  return load(library, content.c_str(), num_jit_options, jit_options, jit_options_values);
}

SOFTGPU_API(cuLibraryUnload)(CUlibrary library) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.libraries.find(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  SOFTGPU_TRY(call.no_unsafe_capture());
  call.rt.wait_all(call.lock, nullptr);
  call.rt.wait_for_effects(call.lock);
  for (const auto& [context, module] : found->modules) unload_module(call, *module);
  for (const auto& kernel : found->in_order) call.rt.kernels.remove(kernel->handle);
  call.rt.libraries.remove(library);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLibraryGetKernel)(CUkernel* kernel, CUlibrary library, const char* name) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.libraries.find(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  const auto entry = found->kernels.find(name);
  if (entry == found->kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *kernel = entry->second->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLibraryGetKernelCount)(unsigned* count, CUlibrary library) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.libraries.find(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *count = static_cast<unsigned>(found->in_order.size());
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLibraryEnumerateKernels)
(CUkernel* kernels, unsigned num_kernels, CUlibrary library) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (kernels == nullptr || num_kernels == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.libraries.find(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  for (unsigned i = 0; i < num_kernels; ++i) {
    kernels[i] = i < found->in_order.size() ? found->in_order[i]->handle : nullptr;
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLibraryGetModule)(CUmodule* mod, CUlibrary library) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (mod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.libraries.find(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Module> module;
  SOFTGPU_TRY(module_of(call, found, module));
  *mod = module->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLibraryGetGlobal)
(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.libraries.find(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Module> module;
  SOFTGPU_TRY(module_of(call, found, module));
  const auto global = module->globals.find(name);
  if (global == module->globals.end()) return CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = global->second;
  if (bytes != nullptr) *bytes = call.rt.addresses.find(global->second)->bytes;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuLibraryGetManaged)
(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (!call.rt.libraries.find(library)) return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_ERROR_NOT_FOUND;  // the module format has no managed variables
}

SOFTGPU_API(cuLibraryGetUnifiedFunction)(void** fptr, CUlibrary library, const char* symbol) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (fptr == nullptr || symbol == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!call.rt.libraries.find(library)) return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_ERROR_INVALID_VALUE;  // no function can be called from the host
}

SOFTGPU_API(cuKernelGetFunction)(CUfunction* func, CUkernel kernel) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (func == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.kernels.find(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Function> function;
  SOFTGPU_TRY(function_of_kernel(call, found, function));
  *func = function->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuKernelGetLibrary)(CUlibrary* lib, CUkernel kernel) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (lib == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.kernels.find(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *lib = found->library.lock()->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuKernelGetName)(const char** name, CUkernel function) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.kernels.find(function);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *name = found->name.c_str();
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuKernelGetAttribute)
(int* value, CUfunction_attribute attrib, CUkernel kernel, CUdevice device) {
  Call call;
  std::shared_ptr<Kernel> found;
  SOFTGPU_TRY(kernel_and_device(call, kernel, device, found));
  if (value == nullptr || attrib >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  Function plain;
  plain.attributes = found->attributes;
  *value = function_attribute(plain, attrib);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuKernelSetAttribute)
(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice device) {
  Call call;
  std::shared_ptr<Kernel> found;
  SOFTGPU_TRY(kernel_and_device(call, kernel, device, found));
  if (attrib != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
      attrib != CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->attributes[attrib] = val;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuKernelSetCacheConfig)(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  Call call;
  std::shared_ptr<Kernel> found;
  SOFTGPU_TRY(kernel_and_device(call, kernel, device, found));
  return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SOFTGPU_API(cuKernelGetParamInfo)
(CUkernel kernel, size_t param_index, size_t* param_offset, size_t* param_size) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (param_offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.kernels.find(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  const auto library = found->library.lock();
  const auto text = std::find_if(library->text.kernels.begin(), library->text.kernels.end(),
                                 [&](const KernelText& one) { return one.name == found->name; });
  if (param_index >= text->params.size()) return CUDA_ERROR_INVALID_VALUE;
  std::size_t offset = 0;
  for (std::size_t i = 0; i <= param_index; ++i) {
    const std::size_t size = size_of(text->params[i]);
    offset = round_up(offset, size);
    if (i < param_index) offset += size;
  }
  *param_offset = offset;
  if (param_size != nullptr) *param_size = size_of(text->params[param_index]);
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
