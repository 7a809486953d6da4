#pragma once

#include <elf.h>
#include <link.h>
#include <stdint.h>

#include "interposer/guest/ground.h"

// The objects (program and libraries) that are loaded into this process, read from their own
// tables: needs neither libdl, which older systems keep apart, nor dlsym, which we replace; leaves
// dlerror() and errno alone, and allocates nothing.
namespace nvshare::interposer::guest {

// Valid while the object stays loaded.
struct Object {
  const char* path;  // "" for the program itself
  uintptr_t base;
  const ElfW(Phdr) * headers;
  unsigned header_count;
  const char* soname;  // null when it has none
  const char* strings;
  const ElfW(Sym) * symbols;
  const uint16_t* versions;  // null when it has none
  const uint32_t* gnu_hash;  // one of the two, or neither
  const uint32_t* sysv_hash;
  // What it takes from others: relocations of functions called, and all others.
  const ElfW(Rela) * relocations[2];
  size_t relocation_counts[2];
  bool has_search_path;  // a list of folders of its own for the libraries that it opens

  bool contains(const void* address) const;
  // Where it defines this function (for symbols with several versions, the default one); null when
  // it does not.
  void* function(const char* symbol) const;
};

// Calls visit(const Object&) for each, in the order of loading, until it says true; whether it did.
// `visit` must not load or unload anything.
template <typename Visit>
bool visit_objects(Visit visit);

// The object that holds this address; false when there is none.
bool find_object(const void* address, Object& object);
// The first one with this soname.
bool find_object_named(const char* soname, Object& object);

// A function of the C library, wherever this version of it keeps it (libc, libdl, libpthread).
void* libc_function(const char* symbol);

Object look_at(const dl_phdr_info& info);

template <typename Visit>
bool visit_objects(Visit visit) {
  auto callback = [](dl_phdr_info* info, size_t, void* given) -> int {
    return (*static_cast<Visit*>(given))(look_at(*info)) ? 1 : 0;
  };
  return dl_iterate_phdr(callback, &visit) != 0;
}

}  // namespace nvshare::interposer::guest
