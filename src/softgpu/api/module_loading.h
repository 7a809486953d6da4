#pragma once

#include <string>

#include "softgpu/api/api.h"

namespace nvshare::softgpu {

// The text of an image as cuModuleLoadData is given it, and what it says.
CUresult read_image(const void* image, ModuleText& text, std::string& complaint);
CUresult read_image_text(std::string_view text, ModuleText& module, std::string& complaint);
// The whole of a file; CUDA_ERROR_FILE_NOT_FOUND when it cannot be read.
CUresult read_file(const char* path, std::string& content);

// Writes a complaint where the JIT options ask for it.
void report_complaint(const std::string& complaint, unsigned count, const CUjit_option* options,
                      void** values);

// Makes a module of the text in the call's context.
CUresult load_module(Call& call, const ModuleText& text, std::shared_ptr<Module>& out);

// The function behind a handle, which may also be that of a library's kernel: then it is the one
// in the current context.
CUresult find_function(Call& call, const void* handle, std::shared_ptr<Function>& out);
CUresult function_of_kernel(Call& call, const std::shared_ptr<Kernel>& kernel,
                            std::shared_ptr<Function>& out);

int function_attribute(const Function& function, CUfunction_attribute attribute);

}  // namespace nvshare::softgpu
