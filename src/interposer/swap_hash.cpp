#include "interposer/swap_hash.h"

namespace nvshare::interposer {

bool fingerprint(Hasher&, const HashTask*, size_t, Fingerprint*) {
  return false;
}

}  // namespace nvshare::interposer
