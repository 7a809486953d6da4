#include "interposer/guest/deepbind.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <initializer_list>

#include "interposer/catch/fronts.h"
#include "interposer/catch/roads.h"
#include "interposer/guest/elf.h"
#include "interposer/guest/sys.h"

namespace nvshare::interposer::guest {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kLazyCall = R_X86_64_JUMP_SLOT;
constexpr uint32_t kAddresses[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64};
#elif defined(__aarch64__)
constexpr uint32_t kLazyCall = R_AARCH64_JUMP_SLOT;
constexpr uint32_t kAddresses[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
#endif

bool is_address(uint32_t type) {
  for (const uint32_t one : kAddresses) {
    if (type == one) return true;
  }
  return false;
}

unsigned count_objects() {
  unsigned count = 0;
  visit_objects([&count](const Object&) {
    ++count;
    return false;
  });
  return count;
}

// Calls visit(const Object&) for those loaded after the first `before`, until it says true.
template <typename Visit>
bool visit_new_objects(unsigned before, Visit visit) {
  unsigned index = 0;
  return visit_objects([&](const Object& one) { return index++ >= before && visit(one); });
}

// What leads past us, and where it should lead to. Null when the symbol is none of ours.
struct Detour {
  void* theirs = nullptr;                  // of the C library
  const catching::Front* front = nullptr;  // or of the library that we stand in front of
  void* ours = nullptr;
};

Detour detour_of(const char* symbol) {
  const catching::Stand ours = catching::find_stand(symbol);
  if (ours.hook != nullptr) return {nullptr, ours.front, ours.hook};
  for (const catching::Road road :
       {catching::Road::Sym, catching::Road::Vsym, catching::Road::Open}) {
    if (strcmp(symbol, catching::road_name(road)) == 0)
      return {catching::real_road(road), nullptr, catching::our_road(road)};
  }
  return {};
}

// Whether a library that came along has a definition of its own, which is then what is meant.
bool is_defined_by_newcomer(const char* symbol, const Detour& detour, unsigned before) {
  return visit_new_objects(before, [&](const Object& one) {
    void* definition = one.function(symbol);
    const bool meant_by_us = detour.front != nullptr && detour.front->is(one);
    return definition != nullptr && definition != detour.theirs && !meant_by_us;
  });
}

// Where the slot leads to now, and whether that is past us.
bool leads_past_us(const Object& object, const void* target, bool may_be_lazy, const char* symbol,
                   const Detour& detour, unsigned before) {
  // Not looked up yet: leads back into the library.
  if (may_be_lazy && object.contains(target)) {
    return !is_defined_by_newcomer(symbol, detour, before);
  }
  if (detour.theirs != nullptr) return target == detour.theirs;
  Object where;
  return find_object(target, where) && detour.front->is(where);
}

// Loaders write-protect some of the slots once they are filled.
void store(const Object& object, void** slot, void* value) {
  const KeepErrno keep;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(slot);
  bool is_protected = false;
  for (unsigned i = 0; i < object.header_count; ++i) {
    const ElfW(Phdr)& segment = object.headers[i];
    const uintptr_t begin = object.base + segment.p_vaddr;
    is_protected = is_protected || (segment.p_type == PT_GNU_RELRO && address >= begin &&
                                    address - begin < segment.p_memsz);
  }
  auto* begin = reinterpret_cast<void*>(address & ~(page - 1));
  if (is_protected && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (is_protected) mprotect(begin, page, PROT_READ);
}

void mend(const Object& object, const ElfW(Rela) & relocation, unsigned before) {
  const auto type = static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info));
  const auto index = ELF64_R_SYM(relocation.r_info);
  if (index == 0 || !is_address(type)) return;
  const ElfW(Sym)& symbol = object.symbols[index];
  const char* name = object.strings + symbol.st_name;
  const Detour detour = detour_of(name);
  if (detour.ours == nullptr || symbol.st_shndx != SHN_UNDEF) return;
  auto** slot = reinterpret_cast<void**>(object.base + relocation.r_offset);
  if (leads_past_us(object, *slot, type == kLazyCall, name, detour, before)) {
    store(object, slot, detour.ours);
  }
}

}  // namespace

void* open_deep(const char* file, int mode) {
  const unsigned before = count_objects();
  void* handle =
      reinterpret_cast<decltype(&dlopen)>(catching::real_road(catching::Road::Open))(file, mode);
  if (handle == nullptr) return nullptr;
  visit_new_objects(before, [before](const Object& one) {
    if (catching::has_front(one) || one.symbols == nullptr || one.strings == nullptr) return false;
    for (unsigned list = 0; list < 2; ++list) {
      for (size_t i = 0; i < one.relocation_counts[list]; ++i) {
        mend(one, one.relocations[list][i], before);
      }
    }
    return false;
  });
  return handle;
}

bool is_found_alike(const char* file, const void* caller) {
  if (strchr(file, '$') != nullptr) return false;
  if (strchr(file, '/') != nullptr) return true;
  // Without a folder, the program's and the asking library's own lists are searched.
  return !visit_objects([caller](const Object& one) {
    const bool asked = one.path[0] == 0 || one.contains(caller);
    return asked && one.has_search_path;
  });
}

}  // namespace nvshare::interposer::guest
