#include "interposer/gate/records.h"

// In the place of records.cpp, for tests without it.
namespace nvshare::interposer::gate {

std::atomic<int> g_captures{0};
bool stopped_looking() {
  return false;
}

}  // namespace nvshare::interposer::gate
