# What every target of ours shares: the language, the warnings, the sanitizers, and how a folder
# declares its library, its tests and its benchmarks in one line each.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(NVSHARE_CCACHE ccache)
if(NVSHARE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NVSHARE_CCACHE})
endif()

add_library(nvshare_warnings INTERFACE)
target_include_directories(nvshare_warnings INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(nvshare_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual)
if(NVSHARE_WERROR)
  target_compile_options(nvshare_warnings INTERFACE -Werror)
endif()

add_library(nvshare_options INTERFACE)
target_link_libraries(nvshare_options INTERFACE nvshare_warnings)
if(NVSHARE_SANITIZE)
  target_compile_options(nvshare_options INTERFACE
    -fsanitize=${NVSHARE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(nvshare_options INTERFACE -fsanitize=${NVSHARE_SANITIZE})
endif()
if(NVSHARE_FUZZ)
  target_compile_options(nvshare_options INTERFACE 
    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_link_options(nvshare_options INTERFACE -fsanitize=address,undefined)
endif()

# nvshare_library(NAME SOURCES... [LINK libs...]): a static library of one folder.
function(nvshare_library name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC nvshare_options ${ARG_LINK})
endfunction()

# nvshare_test(NAME SOURCES... [LINK libs...] [LABELS l...] [TIMEOUT s] [LOCK name] [ALONE]): one
# GoogleTest program, one ctest entry for each of its cases. Those with the same lock run one at a
# time; those that are ALONE run beside no other test at all.
function(nvshare_test name)
  if(NOT NVSHARE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "ALONE" "TIMEOUT;LOCK" "LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE nvshare_options ${ARG_LINK} GTest::gtest GTest::gtest_main)
  if(NVSHARE_SANITIZE)
    target_compile_definitions(${name} PRIVATE NVSHARE_UNDER_SANITIZER=1)
  endif()
  include(GoogleTest)
  # Only what is set: an empty value would be taken for the name of the next property.
  set(properties TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${ARG_ALONE})
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  if(ARG_LOCK)
    list(APPEND properties RESOURCE_LOCK "${ARG_LOCK}")
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
endfunction()

# toml++ is used where it is installed; without it, what comes from TOML files is left out and
# says so (docs/decisions/0002-dependencies.md).
function(nvshare_find_toml)
  find_path(NVSHARE_TOML_INCLUDE toml++/toml.h)
  add_library(nvshare_toml INTERFACE)
  if(NVSHARE_TOML_INCLUDE)
    target_include_directories(nvshare_toml SYSTEM INTERFACE ${NVSHARE_TOML_INCLUDE})
    target_compile_definitions(nvshare_toml INTERFACE
      NVSHARE_HAVE_TOML=1 TOML_HEADER_ONLY=1 TOML_EXCEPTIONS=0 TOML_ENABLE_FORMATTERS=0)
  else()
    message(STATUS "toml++ not found: scenario and configuration files are left out of this build")
  endif()
endfunction()

# libmicrohttpd likewise. Its headers are the system's: no warnings of ours.
function(nvshare_find_microhttpd)
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(MICROHTTPD QUIET IMPORTED_TARGET libmicrohttpd>=0.9.75)
  endif()
  add_library(nvshare_microhttpd INTERFACE)
  set(NVSHARE_HAVE_MICROHTTPD OFF PARENT_SCOPE)
  if(TARGET PkgConfig::MICROHTTPD)
    target_link_libraries(nvshare_microhttpd INTERFACE PkgConfig::MICROHTTPD)
    set(NVSHARE_HAVE_MICROHTTPD ON PARENT_SCOPE)
  else()
    message(STATUS "libmicrohttpd not found: HTTP is left out of this build")
  endif()
endfunction()
