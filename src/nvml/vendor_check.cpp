// Our declarations against the vendor's header, by the compiler, as in src/cuda: every enumeration,
// constant, structure and function of ours must be the vendor's, apart from the namespace. Compiled
// where the vendor's header is found; nothing of it is part of what is installed.

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#include "nvml/table.h"

namespace nvshare::nvml::values {
// The vendor's macros would replace the names of ours once its header is in.
#define NVSHARE_NVML_CONSTANT(name, value) constexpr unsigned ours_##name = value;
#include "nvml/enums.def"
}  // namespace nvshare::nvml::values

// Makes the header declare every version of every function under its symbol.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

namespace nvshare::nvml {
namespace {

// A type of ours that stands for one of the vendor's.
template <typename Ours, typename Vendors>
struct Twin : std::false_type {};

template <>
struct Twin<nvml::nvmlDevice_t, ::nvmlDevice_t> : std::true_type {};
#define NVSHARE_NVML_ENUM_BEGIN(enumeration) \
  template <>                                \
  struct Twin<nvml::enumeration, ::enumeration> : std::true_type {};
#include "nvml/enums.def"
#define NVSHARE_NVML_STRUCT(structure) \
  template <>                          \
  struct Twin<nvml::structure, ::structure> : std::true_type {};
#define NVSHARE_NVML_FIELD(structure, field)
#include "nvml/fields.def"

// The same type, reading each of our names as the vendor's.
template <typename Ours, typename Vendors>
struct Same : std::bool_constant<std::is_same_v<Ours, Vendors> || Twin<Ours, Vendors>::value> {};
template <typename Ours, typename Vendors>
struct Same<const Ours, const Vendors> : Same<Ours, Vendors> {};
template <typename Ours, typename Vendors>
struct Same<Ours*, Vendors*>
    : std::bool_constant<Same<Ours, Vendors>::value || Twin<Ours*, Vendors*>::value> {};
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

#define NVSHARE_NVML_ENUM_BEGIN(enumeration)                              \
  static_assert(std::is_same_v<std::underlying_type_t<nvml::enumeration>, \
                               std::underlying_type_t<::enumeration>>,    \
                #enumeration " is stored differently");
#define NVSHARE_NVML_VALUE(enumerator, value)                                                     \
  static_assert(static_cast<long long>(nvml::enumerator) == static_cast<long long>(::enumerator), \
                #enumerator " has another value");
#define NVSHARE_NVML_CONSTANT(name, value) \
  static_assert(values::ours_##name == (name), #name " has another value");
#include "nvml/enums.def"

#define NVSHARE_NVML_STRUCT(structure)                                \
  static_assert(sizeof(nvml::structure) == sizeof(::structure) &&     \
                    alignof(nvml::structure) == alignof(::structure), \
                #structure " has another size");
#define NVSHARE_NVML_FIELD(structure, field)                                      \
  static_assert(offsetof(nvml::structure, field) == offsetof(::structure, field), \
                #structure "." #field " is elsewhere");                           \
  static_assert(Same<decltype(std::declval<nvml::structure>().field),             \
                     decltype(std::declval<::structure>().field)>::value,         \
                #structure "." #field " has another type");
#include "nvml/fields.def"

static_assert(struct_version<nvml::nvmlMemory_v2_t>(2) == nvmlMemory_v2);
static_assert(struct_version<nvml::nvmlProcessesUtilizationInfo_v1_t>(1) ==
              nvmlProcessesUtilizationInfo_v1);

#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments)      \
  static_assert(Same<Signature<FunctionId::symbol>, decltype(::symbol)>::value, \
                #symbol " is declared differently");
#include "nvml/functions.def"

// The check itself must be able to fail.
static_assert(!Same<nvmlReturn_t(int), ::nvmlReturn_t(unsigned)>::value);
static_assert(!Same<nvmlReturn_t(int), ::nvmlReturn_t(int, int)>::value);
static_assert(!Same<nvmlReturn_t, ::nvmlEnableState_t>::value);

TEST(NvmlVendorCheck, Compiled) {
  // All is asserted above; what runs is the one thing only a running program can say.
  EXPECT_EQ(kFunctionCount, sizeof(kFunctions) / sizeof(kFunctions[0]));
}

}  // namespace
}  // namespace nvshare::nvml
