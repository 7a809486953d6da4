#include "config/exact_text.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "wire/limit_text.h"

namespace nvshare::config {
namespace {

// The largest unit in which the count is whole.
std::string whole(std::int64_t count,
                  std::span<const std::pair<std::string_view, std::int64_t>> units) {
  for (const auto& [name, scale] : units) {
    if (count % scale == 0) return fmt::format("{}{}", count / scale, name);
  }
  return fmt::format("{}", count);
}

}  // namespace

std::string exact_text(Duration value) {
  static constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> kUnits{
      {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}}};
  return whole(value.count(), kUnits);
}

std::string exact_text(Bytes value) {
  static constexpr std::array<std::pair<std::string_view, std::int64_t>, 3> kUnits{
      {{"Gi", std::int64_t{1} << 30},
       {"Mi", std::int64_t{1} << 20},
       {"Ki", std::int64_t{1} << 10}}};
  const std::string text = value.count == 0 ? "0" : whole(value.count, kUnits);
  return wire::lacks_unit(text.data(), text.size()) ? text + "B" : text;
}

std::string toml_text(std::string_view text) {
  std::string whole = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') whole += '\\';
    if ((c >= 0 && c < ' ') || c == 0x7f) {
      whole += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      whole += c;
    }
  }
  return whole + '"';
}

}  // namespace nvshare::config
