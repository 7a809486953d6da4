#include "interposer/guest/elf.h"

#include <string.h>

#include <initializer_list>

namespace nvshare::interposer::guest {

namespace {

constexpr uint16_t kHiddenVersion =
    0x8000;  // of an older version: linked with only by old programs

// Some loaders leave the addresses in the dynamic section as the file has them.
uintptr_t absolute(uintptr_t base, ElfW(Addr) address) {
  return address < base ? base + address : address;
}

bool defines(const ElfW(Sym) & symbol) {
  // The lower half of st_info is the type in both classes.
  return symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 && (symbol.st_info & 0xf) == STT_FUNC;
}

// Keeps the best of several definitions of one name.
struct Choice {
  const Object& object;
  const char* name;
  void* found = nullptr;

  // Whether nothing better can come.
  bool consider(uint32_t index) {
    const ElfW(Sym)& symbol = object.symbols[index];
    if (!defines(symbol) || strcmp(object.strings + symbol.st_name, name) != 0) return false;
    const bool old = object.versions != nullptr && (object.versions[index] & kHiddenVersion) != 0;
    if (old && found != nullptr) return false;
    found = reinterpret_cast<void*>(object.base + symbol.st_value);
    return !old;
  }
};

void search_gnu(Choice& choice) {
  const uint32_t* table = choice.object.gnu_hash;
  const uint32_t bucket_count = table[0];
  const uint32_t first = table[1];
  const uint32_t bloom_size = table[2];
  if (bucket_count == 0) return;
  const auto* bloom = reinterpret_cast<const ElfW(Addr)*>(table + 4);
  const auto* buckets = reinterpret_cast<const uint32_t*>(bloom + bloom_size);
  const uint32_t* chains = buckets + bucket_count;
  uint32_t hash = 5381;
  for (const char* c = choice.name; *c != 0; ++c) hash = hash * 33 + static_cast<uint8_t>(*c);
  constexpr uint32_t kBits = 8 * sizeof(ElfW(Addr));
  const ElfW(Addr) word = bloom[(hash / kBits) % bloom_size];
  const uint32_t second = hash >> table[3];
  if (((word >> (hash % kBits)) & (word >> (second % kBits)) & 1) == 0) return;
  uint32_t index = buckets[hash % bucket_count];
  if (index < first) return;
  for (;; ++index) {
    const uint32_t chained = chains[index - first];
    if ((chained | 1) == (hash | 1) && choice.consider(index)) return;
    if ((chained & 1) != 0) return;
  }
}

void search_sysv(Choice& choice) {
  const uint32_t* table = choice.object.sysv_hash;
  const uint32_t bucket_count = table[0];
  if (bucket_count == 0) return;
  const uint32_t* buckets = table + 2;
  const uint32_t* chains = buckets + bucket_count;
  uint32_t hash = 0;
  for (const char* c = choice.name; *c != 0; ++c) {
    hash = (hash << 4) + static_cast<uint8_t>(*c);
    hash = (hash ^ ((hash & 0xf0000000) >> 24)) & 0x0fffffff;
  }
  for (uint32_t i = buckets[hash % bucket_count]; i != STN_UNDEF; i = chains[i]) {
    if (choice.consider(i)) return;
  }
}

const ElfW(Dyn) * dynamic_section(const dl_phdr_info& info) {
  for (unsigned i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    return reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
  }
  return nullptr;
}

bool lies_in(const ElfW(Phdr) * headers, unsigned count, uintptr_t base, const void* address) {
  const auto where = reinterpret_cast<uintptr_t>(address);
  for (unsigned i = 0; i < count; ++i) {
    if (headers[i].p_type != PT_LOAD) continue;
    const uintptr_t begin = base + headers[i].p_vaddr;
    if (where >= begin && where - begin < headers[i].p_memsz) return true;
  }
  return false;
}

}  // namespace

Object look_at(const dl_phdr_info& info) {
  Object object{};
  object.path = info.dlpi_name == nullptr ? "" : info.dlpi_name;
  object.base = info.dlpi_addr;
  object.headers = info.dlpi_phdr;
  object.header_count = info.dlpi_phnum;
  const ElfW(Dyn)* entry = dynamic_section(info);
  if (entry == nullptr) return object;
  bool named = false;
  ElfW(Xword) name = 0;
  for (; entry->d_tag != DT_NULL; ++entry) {
    const uintptr_t address = absolute(object.base, entry->d_un.d_ptr);
    switch (entry->d_tag) {
      case DT_STRTAB:
        object.strings = reinterpret_cast<const char*>(address);
        break;
      case DT_SYMTAB:
        object.symbols = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_GNU_HASH:
        object.gnu_hash = reinterpret_cast<const uint32_t*>(address);
        break;
      case DT_HASH:
        object.sysv_hash = reinterpret_cast<const uint32_t*>(address);
        break;
      case DT_VERSYM:
        object.versions = reinterpret_cast<const uint16_t*>(address);
        break;
      case DT_SONAME:
        named = true;
        name = entry->d_un.d_val;
        break;
      case DT_JMPREL:
        object.relocations[0] = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_PLTRELSZ:
        object.relocation_counts[0] = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_RELA:
        object.relocations[1] = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_RELASZ:
        object.relocation_counts[1] = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_RPATH:
      case DT_RUNPATH:
        object.has_search_path = true;
        break;
    }
  }
  if (named && object.strings != nullptr) object.soname = object.strings + name;
  return object;
}

bool Object::contains(const void* address) const {
  return lies_in(headers, header_count, base, address);
}

void* Object::function(const char* symbol) const {
  if (symbols == nullptr || strings == nullptr) return nullptr;
  Choice choice{*this, symbol};
  if (gnu_hash != nullptr) {
    search_gnu(choice);
  } else if (sysv_hash != nullptr) {
    search_sysv(choice);
  }
  return choice.found;
}

bool find_object(const void* address, Object& object) {
  struct Search {
    const void* address;
    Object& object;
  } search{address, object};
  // Most objects need no closer look.
  auto callback = [](dl_phdr_info* info, size_t, void* given) -> int {
    const auto& wanted = *static_cast<Search*>(given);
    if (!lies_in(info->dlpi_phdr, info->dlpi_phnum, info->dlpi_addr, wanted.address)) return 0;
    wanted.object = look_at(*info);
    return 1;
  };
  return dl_iterate_phdr(callback, &search) != 0;
}

bool find_object_named(const char* soname, Object& object) {
  return visit_objects([&](const Object& one) {
    if (one.soname == nullptr || strcmp(one.soname, soname) != 0) return false;
    object = one;
    return true;
  });
}

void* libc_function(const char* symbol) {
  // In libc since glibc 2.34; before, in one of the others.
  for (const char* library : {"libc.so.6", "libdl.so.2", "libpthread.so.0"}) {
    Object object;
    if (!find_object_named(library, object)) continue;
    if (void* found = object.function(symbol); found != nullptr) return found;
  }
  return nullptr;
}

}  // namespace nvshare::interposer::guest
