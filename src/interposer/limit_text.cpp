#include "interposer/limit_text.h"

namespace nvshare::interposer {
namespace {

struct Unit {
  const char* name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"K", 1000},
    {"M", 1000 * 1000},
    {"G", 1000ull * 1000 * 1000},
    {"T", 1000ull * 1000 * 1000 * 1000},
    {"Ki", 1ull << 10},
    {"Mi", 1ull << 20},
    {"Gi", 1ull << 30},
    {"Ti", 1ull << 40},
};

// A trailing B is allowed, as in base/units.h, which a guest cannot use.
bool same(const char* text, const char* unit) {
  while (*unit != 0) {
    if (*text++ != *unit++) return false;
  }
  if (*text == 'B') ++text;
  return *text == 0;
}

}  // namespace

uint64_t parse_limit(const char* text, uint64_t device_memory) {
  if (text == nullptr || *text < '0' || *text > '9') return 0;
  uint64_t number = 0;
  for (; *text >= '0' && *text <= '9'; ++text) {
    if (__builtin_mul_overflow(number, 10u, &number)) return 0;
    if (__builtin_add_overflow(number, static_cast<uint64_t>(*text - '0'), &number)) return 0;
  }
  if (text[0] == '%' && text[1] == 0) {
    return number > 100 ? 0 : device_memory / 100 * number + device_memory % 100 * number / 100;
  }
  for (const Unit& unit : kUnits) {
    uint64_t bytes;
    if (same(text, unit.name)) {
      return __builtin_mul_overflow(number, unit.bytes, &bytes) ? 0 : bytes;
    }
  }
  return 0;
}

}  // namespace nvshare::interposer
