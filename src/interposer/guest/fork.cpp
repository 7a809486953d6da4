#include "interposer/guest/fork.h"

#include <atomic>

#include "interposer/gate/gate.h"
#include "interposer/gate/records.h"
#include "interposer/link/ipc.h"
#include "interposer/link/look.h"
#include "interposer/link/state.h"
#include "interposer/memory/imports.h"
#include "interposer/memory/memory.h"
#include "interposer/moving/managed/managed.h"

// What pthread_atfork is made of; that itself moved between glibc's libraries.
extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* dso);
extern "C" void* __dso_handle;

namespace nvshare::interposer {
namespace {

std::atomic<bool> g_registered{false};
std::atomic<bool> g_in_child{false};

void in_child() {
  g_in_child = any_link();
  forget_slots_after_fork();
  forget_records_after_fork();
  forget_links_after_fork();
  memory_reset_after_fork();
  swap_reset_after_fork();
  managed_reset_after_fork();
  forget_looks_after_fork();
  forget_imports_after_fork();
  forget_answers_after_fork();
  forget_ipc_after_fork();
}

}  // namespace

void handle_forks() {
  if (g_registered.exchange(true)) return;
  __register_atfork(nullptr, nullptr, in_child, &__dso_handle);
}

bool in_forked_child() {
  return g_in_child.load(std::memory_order_relaxed);
}

}  // namespace nvshare::interposer
