// Modules and libraries: loading, what is in them, what is not.

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr char kBadText[] = "this is not a module";
constexpr char kBadPtx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n.entry broken( { ret; }\n";
constexpr char kNoPath[] = "/nonexistent/module.ptx";

// The kernels in a file, as cuModuleLoad wants them.
class KernelFile {
 public:
  KernelFile() {
    char path[] = "/tmp/nvshare_conformance_XXXXXX";
    const int fd = ::mkstemp(path);
    path_ = path;
    if (fd < 0) return;
    if (::write(fd, kKernels, sizeof kKernels - 1) < 0) path_ = kNoPath;
    ::close(fd);
  }
  ~KernelFile() { ::unlink(path_.c_str()); }
  KernelFile(const KernelFile&) = delete;
  KernelFile& operator=(const KernelFile&) = delete;

  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

void loading(Run& run) {
  const KernelFile file;
  const char* path = file.path();
  const char* empty = "";
  CUmodule module = nullptr;
  CALL(cuModuleLoadData, &module, kKernels);
  CALL(cuModuleUnload, module);
  CALL(cuModuleLoadData, &module, kBadText);
  CALL(cuModuleLoadData, &module, kBadPtx);
  CALL(cuModuleLoadData, &module, empty);
  CALL(cuModuleLoadData, &module, nullptr);
  CALL(cuModuleLoadData, nullptr, kKernels);
  CALL(cuModuleLoadDataEx, &module, kKernels, 0, nullptr, nullptr);
  CALL(cuModuleUnload, module);
  CALL(cuModuleLoadDataEx, &module, kKernels, 1, nullptr, nullptr);
  CALL(cuModuleLoadFatBinary, &module, kKernels);
  CALL(cuModuleLoad, &module, path);
  CALL(cuModuleUnload, module);
  CALL(cuModuleLoad, &module, kNoPath);
  CALL(cuModuleLoad, &module, nullptr);
  CALL(cuModuleLoad, nullptr, path);
  CALL(cuModuleUnload, nullptr);
}

void with_options(Run& run) {
  CUmodule module = nullptr;
  static char info[2048];
  static char error[2048];
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_OPTIMIZATION_LEVEL};
  void* values[] = {info, reinterpret_cast<void*>(sizeof info), error,
                    reinterpret_cast<void*>(sizeof error), reinterpret_cast<void*>(uintptr_t{3})};
  CALL(cuModuleLoadDataEx, &module, kKernels, 5, options, values);
  run.value("error log is empty", error[0] == '\0');
  CALL(cuModuleUnload, module);
  values[1] = reinterpret_cast<void*>(sizeof info);
  values[3] = reinterpret_cast<void*>(sizeof error);
  CALL(cuModuleLoadDataEx, &module, kBadPtx, 5, options, values);
  run.value("error log is empty", error[0] == '\0');
}

void contents(Run& run) {
  CUmodule module = nullptr;
  CUmodule owner = nullptr;
  CUfunction function = nullptr;
  CUfunction functions[16] = {};
  CUdeviceptr address = 0;
  size_t bytes = 0;
  unsigned count = 0;
  const char* name = nullptr;
  SETUP(cuModuleLoadData, &module, kKernels);
  CALL(cuModuleGetFunction, &function, module, "fill32");
  CALL(cuModuleGetFunction, &function, module, "nothing_of_the_kind");
  CALL(cuModuleGetFunction, &function, module, "");
  CALL(cuModuleGetFunction, &function, module, nullptr);
  CALL(cuModuleGetFunction, nullptr, module, "fill32");
  CALL(cuModuleGetFunctionCount, &count, module);
  run.value("count", count);
  CALL(cuModuleEnumerateFunctions, functions, 16, module);
  CALL(cuFuncGetName, &name, function);
  run.value("name", name);
  CALL(cuFuncGetModule, &owner, function);
  run.value("is the module", owner == module);
  CALL(cuModuleGetGlobal_v2, &address, &bytes, module, "table");
  run.value("bytes", bytes);
  run.value("has an address", address != 0);
  CALL(cuMemsetD32_v2, address, 7, 16);
  CALL(cuModuleGetGlobal_v2, &address, nullptr, module, "table");
  CALL(cuModuleGetGlobal_v2, nullptr, &bytes, module, "table");
  CALL(cuModuleGetGlobal_v2, nullptr, nullptr, module, "table");
  CALL(cuModuleGetGlobal_v2, &address, &bytes, module, "fill32");
  CALL(cuModuleGetGlobal_v2, &address, &bytes, module, "no_such_global");
  CALL(cuModuleGetGlobal_v2, &address, &bytes, module, nullptr);
  CALL(cuMemFree_v2, address);
  CALL(cuModuleUnload, module);
}

void function_attributes(Run& run) {
  const Kernels kernels = load_kernels(run);
  int value = -1;
  size_t offset = 0;
  size_t size = 0;
  const auto no_such_attribute = static_cast<CUfunction_attribute>(999);
  CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernels.fill32);
  run.value("value", value);
  CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernels.fill32);
  run.value("value", value);
  CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernels.fill32);
  run.value("value", value);
  CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernels.fill32);
  run.value("more than none", value > 0);
  CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernels.fill32);
  run.value("value", value);
  CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernels.fill32);
  run.value("value", value);
  CALL(cuFuncGetAttribute, &value, no_such_attribute, kernels.fill32);
  CALL(cuFuncGetAttribute, nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, kernels.fill32);
  CALL(cuFuncSetAttribute, kernels.fill32, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536);
  CALL(cuFuncSetAttribute, kernels.fill32, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
       100000000);
  CALL(cuFuncSetAttribute, kernels.fill32, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 32);
  CALL(cuFuncSetAttribute, kernels.fill32, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50);
  CALL(cuFuncSetCacheConfig, kernels.fill32, CU_FUNC_CACHE_PREFER_L1);
  CALL(cuFuncGetParamInfo, kernels.fill32, 0, &offset, &size);
  run.value("offset", offset);
  run.value("size", size);
  CALL(cuFuncGetParamInfo, kernels.fill32, 1, &offset, &size);
  run.value("offset", offset);
  run.value("size", size);
  CALL(cuFuncGetParamInfo, kernels.fill32, 2, &offset, &size);
  run.value("offset", offset);
  run.value("size", size);
  CALL(cuFuncGetParamInfo, kernels.fill32, 3, &offset, &size);
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  CALL(cuFuncLoad, kernels.fill32);
  CALL(cuFuncIsLoaded, &state, kernels.fill32);
  run.value("state", static_cast<int>(state));
  int blocks = 0;
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, kernels.fill32, 128, 0);
  run.value("at least one", blocks >= 1);
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, kernels.fill32, 0, 0);
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, kernels.fill32, 128, 100000000);
}

}  // namespace

void modules(Run& run) {
  use_card(run);
  loading(run);
  run.heading("with options");
  with_options(run);
  run.heading("contents");
  contents(run);
  run.heading("functions");
  function_attributes(run);
}

namespace {

void library_contents(Run& run, CUlibrary library) {
  CUkernel kernel = nullptr;
  CUkernel kernels[16] = {};
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUlibrary owner = nullptr;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  unsigned count = 0;
  int value = 0;
  const char* name = nullptr;
  void* host_function = nullptr;
  CALL(cuLibraryGetKernel, &kernel, library, "fill32");
  CALL(cuLibraryGetKernelCount, &count, library);
  run.value("count", count);
  CALL(cuLibraryEnumerateKernels, kernels, 16, library);
  CALL(cuKernelGetName, &name, kernel);
  run.value("name", name);
  CALL(cuKernelGetLibrary, &owner, kernel);
  run.value("is the library", owner == library);
  CALL(cuKernelGetFunction, &function, kernel);
  CALL(cuKernelGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0);
  run.value("value", value);
  CALL(cuKernelGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 99);
  CALL(cuLibraryGetModule, &module, library);
  CALL(cuLibraryGetGlobal, &address, &bytes, library, "table");
  run.value("bytes", bytes);
  CALL(cuLibraryGetGlobal, &address, &bytes, library, "no_such_global");
  CALL(cuLibraryGetManaged, &address, &bytes, library, "table");
  CALL(cuLibraryGetUnifiedFunction, &host_function, library, "no_such_function");
  CALL(cuLibraryGetKernel, &kernel, library, "no_such_kernel");
  CALL(cuLibraryGetKernel, &kernel, library, nullptr);
  CALL(cuLibraryGetKernel, nullptr, library, "fill32");
}

}  // namespace

void libraries(Run& run) {
  use_card(run);
  const KernelFile file;
  const char* path = file.path();
  CUlibrary library = nullptr;
  CALL(cuLibraryLoadFromFile, &library, path, nullptr, nullptr, 0, nullptr, nullptr, 0);
  CALL(cuLibraryUnload, library);
  CALL(cuLibraryLoadFromFile, &library, kNoPath, nullptr, nullptr, 0, nullptr, nullptr, 0);
  CALL(cuLibraryLoadData, &library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0);
  CALL(cuLibraryLoadData, nullptr, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0);
  CALL(cuLibraryLoadData, &library, kBadText, nullptr, nullptr, 0, nullptr, nullptr, 0);
  CALL(cuLibraryLoadData, &library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0);
  library_contents(run, library);

  run.heading("a kernel launched by its own handle, and by the function made of it");
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  SETUP(cuLibraryGetKernel, &kernel, library, "fill32");
  SETUP(cuKernelGetFunction, &function, kernel);
  const CUdeviceptr address = device_memory(run, kMiB);
  const auto kernel_as_function = reinterpret_cast<CUfunction>(kernel);
  FillParams first(address, 5, 256);
  FillParams second(address, 6, 256);
  CALL(cuLaunchKernel, kernel_as_function, 1, 1, 1, 64, 1, 1, 0, nullptr, first.pointers, nullptr);
  run.value("filled", all_words(run, address, 5, 256));
  CALL(cuLaunchKernel, function, 1, 1, 1, 64, 1, 1, 0, nullptr, second.pointers, nullptr);
  run.value("filled", all_words(run, address, 6, 256));
  CALL(cuLibraryUnload, library);
  CALL(cuLibraryUnload, nullptr);
}

}  // namespace nvshare::conformance
