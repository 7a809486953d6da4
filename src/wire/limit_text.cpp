#include "wire/limit_text.h"

namespace nvshare::wire {
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

__extension__ typedef unsigned __int128 Wide;

// "1.5" is 15 of ten parts of one.
struct Number {
  uint64_t parts = 0;
  uint64_t of_one = 1;
};

bool add_digit(Number& number, char digit) {
  return !__builtin_mul_overflow(number.parts, 10u, &number.parts) &&
         !__builtin_add_overflow(number.parts, static_cast<uint64_t>(digit - '0'), &number.parts);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Moves on to what follows the number; false when there is none.
bool take_number(const char*& text, Number& number) {
  constexpr uint64_t kSmallestPart = 1'000'000;
  if (!is_digit(*text)) return false;
  for (; is_digit(*text); ++text) {
    if (!add_digit(number, *text)) return false;
  }
  if (*text != '.') return true;
  for (++text; is_digit(*text); ++text) {
    if (number.of_one == kSmallestPart || !add_digit(number, *text)) return false;
    number.of_one *= 10;
  }
  return number.of_one > 1;
}

uint64_t times(const Number& number, uint64_t bytes, uint64_t divided_by = 1) {
  const Wide all = Wide{number.parts} * bytes / number.of_one / divided_by;
  return all > UINT64_MAX ? 0 : static_cast<uint64_t>(all);
}

}  // namespace

uint64_t parse_limit(const char* text, uint64_t device_memory) {
  Number number;
  if (text == nullptr || lacks_unit(text, __builtin_strlen(text))) return 0;
  if (!take_number(text, number)) return 0;
  if (text[0] == '%' && text[1] == 0) {
    const uint64_t bytes = times(number, device_memory, 100);
    return bytes > device_memory ? 0 : bytes;
  }
  for (const Unit& unit : kUnits) {
    if (same(text, unit.name)) return times(number, unit.bytes);
  }
  return 0;
}

bool understands_limit(const char* text) {
  if (text == nullptr || text[0] == 0 || (text[0] == '0' && text[1] == 0)) return true;
  return parse_limit(text, UINT64_MAX) != 0;
}

}  // namespace nvshare::wire
