#include "softgpu/kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace nvshare::softgpu {
namespace {

using Params = std::span<const ParamType>;
using Values = std::span<const std::uint64_t>;

constexpr std::size_t kChunk = 64 * 1024;
constexpr std::uint64_t kMost = std::uint64_t{1} << 48;  // no count above this is honest

template <ParamType... kTypes>
bool exactly(Params params) {
  static constexpr std::array<ParamType, sizeof...(kTypes)> kWanted{kTypes...};
  return std::equal(params.begin(), params.end(), kWanted.begin(), kWanted.end());
}

bool is_number(ParamType type) {
  return type != ParamType::kPointer;
}

double no_bytes(Params, Values) {
  return 0;
}
double no_time(Values) {
  return 0;
}

// Calls `body(chunk, bytes, offset)` for `count` elements of `size` bytes at `address`, chunk by
// chunk, and writes back what it made of them.
template <typename Body>
KernelOutcome over(const KernelMemory& memory, std::uint64_t address, std::uint64_t count,
                   std::size_t size, bool read_first, Body body) {
  if (count > kMost) return KernelOutcome::kIllegalAddress;
  std::vector<unsigned char> chunk(kChunk);
  std::uint64_t done = 0;
  while (done < count) {
    const std::uint64_t elements = std::min<std::uint64_t>(count - done, kChunk / size);
    const std::size_t bytes = elements * size;
    const std::uint64_t at = address + done * size;
    if (read_first && !memory.read(at, chunk.data(), bytes)) return KernelOutcome::kIllegalAddress;
    body(chunk.data(), bytes, done * size);
    if (!memory.write(at, chunk.data(), bytes)) return KernelOutcome::kIllegalAddress;
    done += elements;
  }
  return KernelOutcome::kDone;
}

// fill(ptr, value, count): count elements of the value's type.
KernelOutcome fill(const KernelMemory& memory, Params params, Values values) {
  const std::size_t size = size_of(params[1]);
  const std::uint64_t value = values[1];
  return over(memory, values[0], values[2], size, false,
              [&](unsigned char* to, std::size_t bytes, std::uint64_t) {
                for (std::size_t at = 0; at < bytes; at += size) std::memcpy(to + at, &value, size);
              });
}

bool fill_accepts(Params params) {
  return params.size() == 3 && params[0] == ParamType::kPointer && is_number(params[1]) &&
         params[2] == ParamType::kU64;
}

double fill_bytes(Params params, Values values) {
  return static_cast<double>(values[2]) * static_cast<double>(size_of(params[1]));
}

template <typename T>
void apply(unsigned char* raw, std::size_t bytes, T (*body)(T, T), T operand) {
  for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
    T value;
    std::memcpy(&value, raw + at, sizeof value);
    value = body(value, operand);
    std::memcpy(raw + at, &value, sizeof value);
  }
}

template <typename T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Combines each element with one operand, in the type the parameter has.
template <template <typename> typename Operation>
void combine(ParamType type, unsigned char* raw, std::size_t bytes, std::uint64_t bits) {
  switch (type) {
    case ParamType::kU8:
      return apply<std::uint8_t>(raw, bytes, Operation<std::uint8_t>::apply,
                                 from_bits<std::uint8_t>(bits));
    case ParamType::kU16:
      // Unsigned short is promoted to int, which a product can overflow.
      return apply<std::uint16_t>(raw, bytes, Operation<std::uint16_t>::apply,
                                  from_bits<std::uint16_t>(bits));
    case ParamType::kU32:
      return apply<std::uint32_t>(raw, bytes, Operation<std::uint32_t>::apply,
                                  from_bits<std::uint32_t>(bits));
    case ParamType::kF32:
      return apply<float>(raw, bytes, Operation<float>::apply, from_bits<float>(bits));
    case ParamType::kF64:
      return apply<double>(raw, bytes, Operation<double>::apply, from_bits<double>(bits));
    case ParamType::kU64:
    case ParamType::kPointer:
      return apply<std::uint64_t>(raw, bytes, Operation<std::uint64_t>::apply, bits);
  }
}

template <typename T>
struct Sum {
  static T apply(T a, T b) { return static_cast<T>(a + b); }
};
template <typename T>
struct Product {
  static T apply(T a, T b) { return static_cast<T>(a * b); }
};
template <>
struct Product<std::uint16_t> {
  static std::uint16_t apply(std::uint16_t a, std::uint16_t b) {
    return static_cast<std::uint16_t>(std::uint32_t{a} * b);
  }
};

// add(ptr, value, count): adds the value to count elements of its type.
KernelOutcome add(const KernelMemory& memory, Params params, Values values) {
  return over(memory, values[0], values[2], size_of(params[1]), true,
              [&](unsigned char* raw, std::size_t bytes, std::uint64_t) {
                combine<Sum>(params[1], raw, bytes, values[1]);
              });
}

// scale(ptr, factor, count): multiplies count elements of the factor's type.
KernelOutcome scale(const KernelMemory& memory, Params params, Values values) {
  return over(memory, values[0], values[2], size_of(params[1]), true,
              [&](unsigned char* raw, std::size_t bytes, std::uint64_t) {
                combine<Product>(params[1], raw, bytes, values[1]);
              });
}

double update_bytes(Params params, Values values) {
  return 2 * fill_bytes(params, values);
}

// copy(to, from, bytes)
KernelOutcome copy(const KernelMemory& memory, Params, Values values) {
  bool readable = true;
  const auto outcome = over(memory, values[0], values[2], 1, false,
                            [&](unsigned char* to, std::size_t bytes, std::uint64_t offset) {
                              readable = readable && memory.read(values[1] + offset, to, bytes);
                            });
  return readable ? outcome : KernelOutcome::kIllegalAddress;
}

double copy_bytes(Params, Values values) {
  return 2 * static_cast<double>(values[2]);
}

// Reads `bytes` bytes and hands them on in order.
template <typename Body>
KernelOutcome scan(const KernelMemory& memory, std::uint64_t address, std::uint64_t bytes,
                   Body body) {
  if (bytes > kMost) return KernelOutcome::kIllegalAddress;
  std::vector<unsigned char> chunk(kChunk);
  for (std::uint64_t done = 0; done < bytes; done += chunk.size()) {
    const std::size_t part = std::min<std::uint64_t>(bytes - done, chunk.size());
    if (!memory.read(address + done, chunk.data(), part)) return KernelOutcome::kIllegalAddress;
    body(chunk.data(), part);
  }
  return KernelOutcome::kDone;
}

KernelOutcome store(const KernelMemory& memory, std::uint64_t address, std::uint64_t value) {
  return memory.write(address, &value, sizeof value) ? KernelOutcome::kDone
                                                     : KernelOutcome::kIllegalAddress;
}

// checksum(out, in, bytes): the sum of all bytes, as u64.
KernelOutcome checksum(const KernelMemory& memory, Params, Values values) {
  std::uint64_t total = 0;
  const auto outcome =
      scan(memory, values[1], values[2], [&](const unsigned char* data, std::size_t bytes) {
        for (std::size_t i = 0; i < bytes; ++i) total += data[i];
      });
  return outcome == KernelOutcome::kDone ? store(memory, values[0], total) : outcome;
}

// hash(out, in, bytes): FNV-1a of 64 bits.
KernelOutcome hash(const KernelMemory& memory, Params, Values values) {
  std::uint64_t state = 0xcbf29ce484222325;
  const auto outcome =
      scan(memory, values[1], values[2], [&](const unsigned char* data, std::size_t bytes) {
        for (std::size_t i = 0; i < bytes; ++i) state = (state ^ data[i]) * 0x100000001b3;
      });
  return outcome == KernelOutcome::kDone ? store(memory, values[0], state) : outcome;
}

// The terms of fingerprint(), for 16 bytes at a place (src/interposer/moving/swap/hash.cpp has the
// same for a real device).
struct FingerprintTerms {
  std::uint64_t first;
  std::uint64_t second;
};

std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

FingerprintTerms fingerprint_terms(std::uint64_t place, std::uint64_t a, std::uint64_t b) {
  const std::uint64_t t = (place + 1) * 0x9e3779b97f4a7c15;
  const std::uint64_t p = t + 0xa0761d6478bd642f;
  const std::uint64_t q = t ^ 0xe7037ed1a0b428db;
  return {folded_product(a ^ p, b ^ q), folded_product(a + q, b + p)};
}

// fingerprint(out, in, bytes): adds to two u64, and ors into a third; whole 16 bytes only.
KernelOutcome fingerprint(const KernelMemory& memory, Params, Values values) {
  std::uint64_t sums[3];
  if (!memory.read(values[0], sums, sizeof sums)) return KernelOutcome::kIllegalAddress;
  std::uint64_t place = 0;
  const auto outcome = scan(memory, values[1], values[2] / 16 * 16,
                            [&](const unsigned char* data, std::size_t bytes) {
                              for (std::size_t at = 0; at < bytes; at += 16, ++place) {
                                std::uint64_t a = 0;
                                std::uint64_t b = 0;
                                std::memcpy(&a, data + at, 8);
                                std::memcpy(&b, data + at + 8, 8);
                                const FingerprintTerms terms = fingerprint_terms(place, a, b);
                                sums[0] += terms.first;
                                sums[1] += terms.second;
                                sums[2] |= a | b;
                              }
                            });
  if (outcome != KernelOutcome::kDone) return outcome;
  return memory.write(values[0], sums, sizeof sums) ? KernelOutcome::kDone
                                                    : KernelOutcome::kIllegalAddress;
}

double scan_bytes(Params, Values values) {
  return static_cast<double>(values[2]);
}

// spin(ns): nothing but time.
KernelOutcome nothing(const KernelMemory&, Params, Values) {
  return KernelOutcome::kDone;
}
double spin_time(Values values) {
  return static_cast<double>(values[0]);
}

bool any_params(Params) {
  return true;
}

constexpr auto kPointerPair = exactly<ParamType::kPointer, ParamType::kPointer, ParamType::kU64>;

constexpr std::array<Builtin, 9> kBuiltins{{
    {"fill", "(ptr, NUMBER, u64)", fill_accepts, fill_bytes, no_time, fill},
    {"add", "(ptr, NUMBER, u64)", fill_accepts, update_bytes, no_time, add},
    {"scale", "(ptr, NUMBER, u64)", fill_accepts, update_bytes, no_time, scale},
    {"copy", "(ptr, ptr, u64)", kPointerPair, copy_bytes, no_time, copy},
    {"checksum", "(ptr, ptr, u64)", kPointerPair, scan_bytes, no_time, checksum},
    {"hash", "(ptr, ptr, u64)", kPointerPair, scan_bytes, no_time, hash},
    {"fingerprint", "(ptr, ptr, u64)", kPointerPair, scan_bytes, no_time, fingerprint},
    {"spin", "(u64)", exactly<ParamType::kU64>, no_bytes, spin_time, nothing},
    {"noop", "anything", any_params, no_bytes, no_time, nothing},
}};

}  // namespace

std::span<const Builtin> builtins() {
  return kBuiltins;
}

const Builtin* find_builtin(std::string_view name) {
  const auto found = std::find_if(kBuiltins.begin(), kBuiltins.end(),
                                  [&](const Builtin& one) { return one.name == name; });
  return found == kBuiltins.end() ? nullptr : &*found;
}

}  // namespace nvshare::softgpu
