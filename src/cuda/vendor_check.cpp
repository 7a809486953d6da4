// Our declarations against the vendor's header, by the compiler: every enumeration, constant,
// structure and function of ours must be the vendor's, apart from the namespace. This file walks
// the same tables that declare them, so nothing declared can stay unchecked. It is compiled where
// the vendor's header is found; nothing of it is part of what is installed.

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda/table.h"

namespace nvshare::cuda::values {
// The vendor's macros would replace the names of ours once its header is in.
#define NVSHARE_CUDA_FLAG(name, value) constexpr unsigned long long ours_##name = value;
#include "cuda/flags.def"
}  // namespace nvshare::cuda::values

// Makes the header declare every version of every function under its symbol.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>

namespace nvshare::cuda {
namespace {

// A type of ours that stands for one of the vendor's.
template <typename Ours, typename Vendors>
struct Twin : std::false_type {};

#define NVSHARE_CUDA_HANDLE(handle, tag) \
  template <>                            \
  struct Twin<cuda::tag, ::tag> : std::true_type {};
#include "cuda/handles.def"

#define NVSHARE_CUDA_ENUM_BEGIN(enumeration, type) \
  template <>                                      \
  struct Twin<cuda::enumeration, ::enumeration> : std::true_type {};
#define NVSHARE_CUDA_VALUE(enumerator, value)
#define NVSHARE_CUDA_ENUM_END(enumeration)
#include "cuda/enums.def"

#define NVSHARE_CUDA_STRUCT(structure) \
  template <>                          \
  struct Twin<cuda::structure, ::structure> : std::true_type {};
#define NVSHARE_CUDA_FIELD(structure, field)
#include "cuda/fields.def"

template <>
struct Twin<cuda::CUDA_RESOURCE_DESC, ::CUDA_RESOURCE_DESC> : std::true_type {};
template <>
struct Twin<cuda::CUDA_TEXTURE_DESC, ::CUDA_TEXTURE_DESC> : std::true_type {};
template <>
struct Twin<cuda::CUDA_RESOURCE_VIEW_DESC, ::CUDA_RESOURCE_VIEW_DESC> : std::true_type {};
// Later generations of graph node parameters repeat the layout of an earlier one under a new name.
template <>
struct Twin<cuda::CUDA_KERNEL_NODE_PARAMS, ::CUDA_KERNEL_NODE_PARAMS_v3> : std::true_type {};
template <>
struct Twin<cuda::CUDA_HOST_NODE_PARAMS, ::CUDA_HOST_NODE_PARAMS_v2> : std::true_type {};
template <>
struct Twin<cuda::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS, ::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2>
    : std::true_type {};
template <>
struct Twin<cuda::CUDA_EXT_SEM_WAIT_NODE_PARAMS, ::CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2>
    : std::true_type {};
template <>
struct Twin<cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS, ::CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>
    : std::true_type {};
template <>
struct Twin<cuda::CUDA_MEM_ALLOC_NODE_PARAMS, ::CUDA_MEM_ALLOC_NODE_PARAMS_v2> : std::true_type {};

// The same type, reading each of our names as the vendor's.
template <typename Ours, typename Vendors>
struct Same : std::bool_constant<std::is_same_v<Ours, Vendors> || Twin<Ours, Vendors>::value> {};
template <typename Ours, typename Vendors>
struct Same<const Ours, const Vendors> : Same<Ours, Vendors> {};
template <typename Ours, typename Vendors>
struct Same<Ours*, Vendors*> : Same<Ours, Vendors> {};
template <typename Ours, typename Vendors, std::size_t n>
struct Same<Ours[n], Vendors[n]> : Same<Ours, Vendors> {};
template <typename Ours, typename Vendors, typename... OurArguments, typename... VendorsArguments>
struct Same<Ours(OurArguments...), Vendors(VendorsArguments...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(OurArguments) != sizeof...(VendorsArguments)) {
      return false;
    } else {
      return Same<Ours, Vendors>::value && (Same<OurArguments, VendorsArguments>::value && ...);
    }
  }();
};

// Enumerations: the same underlying type, the same values.
#define NVSHARE_CUDA_ENUM_BEGIN(enumeration, type)                        \
  static_assert(std::is_same_v<std::underlying_type_t<cuda::enumeration>, \
                               std::underlying_type_t<::enumeration>>,    \
                #enumeration " is stored differently");
#define NVSHARE_CUDA_VALUE(enumerator, value)                                                     \
  static_assert(static_cast<long long>(cuda::enumerator) == static_cast<long long>(::enumerator), \
                #enumerator " has another value");
#define NVSHARE_CUDA_ENUM_END(enumeration)
#include "cuda/enums.def"

#define NVSHARE_CUDA_FLAG(name, value) \
  static_assert(values::ours_##name == (name), #name " has another value");
#include "cuda/flags.def"

// Structures: the same size and alignment; each field at the same place, of the same type.
#define NVSHARE_CUDA_STRUCT(structure)                                \
  static_assert(sizeof(cuda::structure) == sizeof(::structure) &&     \
                    alignof(cuda::structure) == alignof(::structure), \
                #structure " has another size");
#define NVSHARE_CUDA_FIELD(structure, field)                                      \
  static_assert(offsetof(cuda::structure, field) == offsetof(::structure, field), \
                #structure "." #field " is elsewhere");                           \
  static_assert(Same<decltype(std::declval<cuda::structure>().field),             \
                     decltype(std::declval<::structure>().field)>::value,         \
                #structure "." #field " has another type");
#include "cuda/fields.def"

// Functions: the same result and parameters.
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  static_assert(Same<Signature<FunctionId::symbol>, decltype(::symbol)>::value,          \
                #symbol " is declared differently");
#include "cuda/functions.def"

// The check itself must be able to fail.
static_assert(!Same<CUresult(int), ::CUresult(unsigned)>::value);
static_assert(!Same<CUresult(int), ::CUresult(int, int)>::value);
static_assert(!Same<const CUcontext*, ::CUcontext*>::value);
static_assert(!Same<CUcontext, ::CUstream>::value);
static_assert(!Same<CUresult, int>::value);

// What the vendor's header makes with casts that no constant expression may hold.
TEST(VendorCheck, SpecialStreamsAndLaunchKeys) {
  EXPECT_EQ(static_cast<void*>(stream_legacy()), static_cast<void*>(CU_STREAM_LEGACY));
  EXPECT_EQ(static_cast<void*>(stream_per_thread()), static_cast<void*>(CU_STREAM_PER_THREAD));
  EXPECT_EQ(launch_param_end(), CU_LAUNCH_PARAM_END);
  EXPECT_EQ(launch_param_buffer_pointer(), CU_LAUNCH_PARAM_BUFFER_POINTER);
  EXPECT_EQ(launch_param_buffer_size(), CU_LAUNCH_PARAM_BUFFER_SIZE);
}

std::string read_whole(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Every name that the vendor's header declares, whether or not it is a macro for a later symbol.
std::set<std::string> names_in_header() {
  const std::string header = read_whole(NVSHARE_CUDA_HEADER);
  static const std::regex declaration(R"(CUresult\s+CUDAAPI\s+(cu\w+)\s*\()");
  std::set<std::string> names;
  for (std::sregex_iterator match(header.begin(), header.end(), declaration), end; match != end;
       ++match) {
    names.insert((*match)[1]);
  }
  return names;
}

bool left_out(const std::string& name) {
  static const std::string list = read_whole(NVSHARE_CUDA_LEFT_OUT);
  static const std::regex entry(R"((^|\n)(cu\w+)(\*?))");
  for (std::sregex_iterator match(list.begin(), list.end(), entry), end; match != end; ++match) {
    const std::string pattern = (*match)[2];
    // Later versions of a symbol that is left out are left out with it.
    const bool whole = name.size() == pattern.size() || name[pattern.size()] == '_';
    if (name.rfind(pattern, 0) == 0 && (whole || (*match)[3] == "*")) return true;
  }
  return false;
}

TEST(VendorCheck, EveryFunctionOfTheHeaderIsInTheTableOrLeftOutForAReason) {
  std::set<std::string> ours;
  for (const Function& row : kFunctions) {
    ours.insert(row.name);
    ours.insert(row.symbol);
  }
  const std::set<std::string> vendors = names_in_header();
  ASSERT_GT(vendors.size(), 500u);
  for (const std::string& name : vendors) {
    EXPECT_NE(ours.count(name) > 0, left_out(name)) << name;
  }
}

}  // namespace
}  // namespace nvshare::cuda
