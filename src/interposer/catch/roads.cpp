#include "interposer/catch/roads.h"

#include <dlfcn.h>
#include <string.h>

#include <atomic>

#include "interposer/catch/fronts.h"
#include "interposer/guest/deepbind.h"
#include "interposer/guest/elf.h"
#include "interposer/guest/sys.h"

namespace nvshare::interposer::catching {

// A call of dlsym or dlvsym: its arguments, as they lie in registers. Who decides about it may
// change them.
struct Call {
  void* handle;  // or, when the call is answered, the answer
  const char* symbol;
  const char* version;
};

// A call of dlopen.
struct OpenCall {
  const void* file;  // or the answer
  uintptr_t mode;
  uintptr_t unused;
};

// What to do about a call: the function to jump to with the arguments in `call`, or null when its
// first word is the answer. Jumped to and not called, for the C library looks at who called.
extern "C" {
void* nvshare_route_dlsym(Call* call, const void* caller);
void* nvshare_route_dlvsym(Call* call, const void* caller);
void* nvshare_route_dlopen(OpenCall* call, const void* caller);
void nvshare_dlsym() __asm__("dlsym");
void nvshare_dlvsym() __asm__("dlvsym");
void nvshare_dlopen() __asm__("dlopen");
}

#if defined(__x86_64__)
#define NVSHARE_ROAD(name, route)    \
  __asm__(                           \
      ".pushsection .text\n"         \
      ".globl " name                 \
      "\n"                           \
      ".type " name                  \
      ", @function\n"                \
      ".p2align 4\n" name            \
      ":\n"                          \
      ".cfi_startproc\n"             \
      "endbr64\n"                    \
      "sub $40, %rsp\n"              \
      ".cfi_adjust_cfa_offset 40\n"  \
      "mov %rdi, (%rsp)\n"           \
      "mov %rsi, 8(%rsp)\n"          \
      "mov %rdx, 16(%rsp)\n"         \
      "mov %rsp, %rdi\n"             \
      "mov 40(%rsp), %rsi\n"         \
      "call " route                  \
      "\n"                           \
      "mov (%rsp), %rdi\n"           \
      "mov 8(%rsp), %rsi\n"          \
      "mov 16(%rsp), %rdx\n"         \
      "add $40, %rsp\n"              \
      ".cfi_adjust_cfa_offset -40\n" \
      "test %rax, %rax\n"            \
      "jz 1f\n"                      \
      "jmp *%rax\n"                  \
      "1: mov %rdi, %rax\n"          \
      "ret\n"                        \
      ".cfi_endproc\n"               \
      ".size " name ", . - " name    \
      "\n"                           \
      ".popsection\n")
#elif defined(__aarch64__)
#define NVSHARE_ROAD(name, route)   \
  __asm__(                          \
      ".pushsection .text\n"        \
      ".globl " name                \
      "\n"                          \
      ".type " name                 \
      ", %function\n"               \
      ".p2align 4\n" name           \
      ":\n"                         \
      ".cfi_startproc\n"            \
      "hint #34\n"                  \
      "stp x29, x30, [sp, #-48]!\n" \
      ".cfi_def_cfa_offset 48\n"    \
      ".cfi_offset 29, -48\n"       \
      ".cfi_offset 30, -40\n"       \
      "mov x29, sp\n"               \
      "stp x0, x1, [sp, #16]\n"     \
      "str x2, [sp, #32]\n"         \
      "add x0, sp, #16\n"           \
      "mov x1, x30\n"               \
      "bl " route                   \
      "\n"                          \
      "mov x16, x0\n"               \
      "ldp x0, x1, [sp, #16]\n"     \
      "ldr x2, [sp, #32]\n"         \
      "ldp x29, x30, [sp], #48\n"   \
      ".cfi_def_cfa_offset 0\n"     \
      "cbz x16, 1f\n"               \
      "br x16\n"                    \
      "1: ret\n"                    \
      ".cfi_endproc\n"              \
      ".size " name ", . - " name   \
      "\n"                          \
      ".popsection\n")
#else
#error "no way yet to jump on from dlsym on this processor"
#endif

NVSHARE_ROAD("dlsym", "nvshare_route_dlsym");
NVSHARE_ROAD("dlvsym", "nvshare_route_dlvsym");
NVSHARE_ROAD("dlopen", "nvshare_route_dlopen");

namespace {

// A version that no symbol has.
constexpr const char* kNoVersion = "libcuda.so.1";

struct RoadName {
  const char* symbol;
  void (*ours)();
};
// Indexed by Road.
constexpr RoadName kRoads[] = {
    {"dlsym", nvshare_dlsym},
    {"dlvsym", nvshare_dlvsym},
    {"dlopen", nvshare_dlopen},
};
constexpr Road kAllRoads[] = {Road::Sym, Road::Vsym, Road::Open};

bool is_relative(const void* handle) {
  return handle == RTLD_DEFAULT || handle == RTLD_NEXT;
}

bool is_ours(const Object& object) {
  return object.contains(&kRoads);
}

// What somebody who asks for a road gets instead of `found`: the C library's way past us is ours.
void* instead_of_road(void* found) {
  for (const Road road : kAllRoads) {
    if (found == real_road(road)) return our_road(road);
  }
  return found;
}

bool is_road(const char* symbol) {
  for (const Road road : kAllRoads) {
    if (strcmp(symbol, road_name(road)) == 0) return true;
  }
  return false;
}

bool is_called_by(const Front& front, const void* caller) {
  Object object;
  return find_object(caller, object) && front.is(object);
}

// What somebody who asks for a function that we stand in front of gets instead of `found`.
void* instead_of_function(void* found, const Stand& ours, const Call& call, const void* caller) {
  Object object;
  if (!find_object(found, object) || !ours.front->is(object)) return found;
  // A library that is a front of another one means that other one.
  if (is_called_by(*ours.front, caller)) return found;
  if (!ours.front->use(object)) {
    log("%s: a second one; its %s is not ours", object.path, call.symbol);
    return found;
  }
  return ours.hook;
}

// The first loaded object, but us, that defines this symbol; with `after`, of those behind the one
// that holds this address.
bool find_definition(const char* symbol, const void* after, Object& object) {
  Object skipped;
  bool reached = after == nullptr || !find_object(after, skipped);
  return visit_objects([&](const Object& one) {
    if (!reached) {
      reached = one.contains(after);
      return false;
    }
    if (is_ours(one) || one.function(symbol) == nullptr) return false;
    object = one;
    return true;
  });
}

void* answer(Call& call, void* found) {
  call.handle = found;
  return nullptr;
}

// Lets the C library say that the symbol is not there, as it would be without us.
void* not_there(Call& call) {
  call.version = kNoVersion;
  return real_road(Road::Vsym);
}

using Dlsym = void* (*)(void*, const char*);
using Dlvsym = void* (*)(void*, const char*, const char*);

// RTLD_DEFAULT and RTLD_NEXT, where the C library finds our symbols, too.
void* route_relative(Call& call, const Stand& ours, const void* caller) {
  Object definition;
  const void* after = call.handle == RTLD_NEXT ? caller : nullptr;
  if (!find_definition(call.symbol, after, definition)) return not_there(call);
  if (!ours.front->is(definition) || is_called_by(*ours.front, caller)) {
    return real_road(Road::Sym);
  }
  ours.front->use(definition);
  return answer(call, ours.hook);
}

}  // namespace

void* nvshare_route_dlsym(Call* call, const void* caller) {
  void* next = real_road(Road::Sym);
  if (next == nullptr) return answer(*call, nullptr);
  if (call->symbol == nullptr) return next;
  const Stand ours = find_stand(call->symbol);
  if (ours.hook == nullptr && !is_road(call->symbol)) return next;
  if (is_relative(call->handle)) {
    return ours.hook == nullptr ? next : route_relative(*call, ours, caller);
  }
  void* found = reinterpret_cast<Dlsym>(next)(call->handle, call->symbol);
  if (found == nullptr) return answer(*call, nullptr);
  if (ours.hook == nullptr) return answer(*call, instead_of_road(found));
  Object definition;
  if (found == ours.hook && !find_definition(call->symbol, nullptr, definition)) {
    return not_there(*call);
  }
  return answer(*call, instead_of_function(found, ours, *call, caller));
}

void* nvshare_route_dlvsym(Call* call, const void* caller) {
  void* next = real_road(Road::Vsym);
  if (next == nullptr) return answer(*call, nullptr);
  if (call->symbol == nullptr || call->version == nullptr) return next;
  const Stand ours = find_stand(call->symbol);
  if (ours.hook == nullptr && !is_road(call->symbol)) return next;
  // Our own symbols have no version, so that only others are found: also from here, the first
  // library of all.
  void* handle = is_relative(call->handle) ? RTLD_DEFAULT : call->handle;
  void* found = reinterpret_cast<Dlvsym>(next)(handle, call->symbol, call->version);
  if (found == nullptr) return next;
  void* instead = ours.hook == nullptr ? instead_of_road(found)
                                       : instead_of_function(found, ours, *call, caller);
  return instead == found ? next : answer(*call, instead);
}

void* nvshare_route_dlopen(OpenCall* call, const void* caller) {
  void* next = real_road(Road::Open);
  if (next == nullptr) {
    call->file = nullptr;
    return nullptr;
  }
  const auto* file = static_cast<const char*>(call->file);
  const auto mode = static_cast<int>(call->mode);
  if ((mode & RTLD_DEEPBIND) == 0 || file == nullptr) return next;
  if (!is_found_alike(file, caller)) {
    log("%s is opened with RTLD_DEEPBIND and may pass us by", file);
    return next;
  }
  call->file = open_deep(file, mode);
  return nullptr;
}

const char* road_name(Road road) {
  return kRoads[static_cast<unsigned>(road)].symbol;
}

void* our_road(Road road) {
  return reinterpret_cast<void*>(kRoads[static_cast<unsigned>(road)].ours);
}

void* real_road(Road road) {
  static std::atomic<void*> known[sizeof kRoads / sizeof *kRoads];
  std::atomic<void*>& one = known[static_cast<unsigned>(road)];
  void* found = one.load(std::memory_order_relaxed);
  if (found == nullptr) {
    found = libc_function(road_name(road));
    one.store(found, std::memory_order_relaxed);
  }
  return found;
}

}  // namespace nvshare::interposer::catching
