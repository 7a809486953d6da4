#include "interposer/guest/fork.h"

#include <atomic>

#include "interposer/gate/gate.h"
#include "interposer/gate/records.h"
#include "interposer/link/ipc.h"
#include "interposer/link/look.h"
#include "interposer/link/state.h"
#include "interposer/memory/imports.h"
#include "interposer/memory/ipc_answer.h"
#include "interposer/memory/memory.h"
#include "interposer/moving/managed/managed.h"

// What pthread_atfork is made of; that itself moved between glibc's libraries.
extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* dso);
extern "C" void* __dso_handle;

namespace nvshare::interposer::guest {
namespace {

std::atomic<bool> g_registered{false};
std::atomic<bool> g_in_child{false};

void in_child() {
  g_in_child = link::any_link();
  gate::forget_slots_after_fork();
  gate::forget_records_after_fork();
  link::forget_links_after_fork();
  memory::memory_reset_after_fork();
  moving::swap::swap_reset_after_fork();
  moving::managed::managed_reset_after_fork();
  link::forget_looks_after_fork();
  memory::forget_imports_after_fork();
  memory::forget_answers_after_fork();
  link::forget_ipc_after_fork();
}

}  // namespace

void handle_forks() {
  if (g_registered.exchange(true)) return;
  __register_atfork(nullptr, nullptr, in_child, &__dso_handle);
}

bool in_forked_child() {
  return g_in_child.load(std::memory_order_relaxed);
}

}  // namespace nvshare::interposer::guest
