#include "interposer/gate.h"

// Stands in for the gate where there is no gate.cpp: everything passes.
namespace nvshare::interposer {

constinit thread_local Slot* t_slot __attribute__((tls_model("initial-exec")));
std::atomic<Gate*> g_only_gate{nullptr};

void Passage::enter_slow(Destination) {}

}  // namespace nvshare::interposer
