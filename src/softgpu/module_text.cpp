#include "softgpu/module_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/units.h"
#include "softgpu/kernels.h"

namespace nvshare::softgpu {
namespace {

constexpr std::string_view kMark = "//@softgpu";

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Takes the first word off `text`.
std::string_view take_word(std::string_view& text) {
  text = trim(text);
  const auto end = std::min(text.find_first_of(" \t=("), text.size());
  const auto word = text.substr(0, end);
  text = trim(text.substr(end));
  return word;
}

bool take(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text = trim(text.substr(1));
  return true;
}

std::optional<ParamType> param_type(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, ParamType>, 7> kNames{
      {{"ptr", ParamType::kPointer},
       {"u8", ParamType::kU8},
       {"u16", ParamType::kU16},
       {"u32", ParamType::kU32},
       {"u64", ParamType::kU64},
       {"f32", ParamType::kF32},
       {"f64", ParamType::kF64}}};
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

Result<KernelText> parse_kernel(std::string_view rest) {
  KernelText kernel;
  kernel.name = take_word(rest);
  if (kernel.name.empty() || !take(rest, '=')) return Error{"not 'kernel NAME = BUILTIN(TYPES)'"};
  kernel.builtin = take_word(rest);
  const Builtin* builtin = find_builtin(kernel.builtin);
  if (builtin == nullptr) return Error{fmt::format("no built-in kernel '{}'", kernel.builtin)};
  if (!take(rest, '(') || rest.empty() || rest.back() != ')') return Error{"no list of types"};
  rest = trim(rest.substr(0, rest.size() - 1));
  while (!rest.empty()) {
    const auto comma = std::min(rest.find(','), rest.size());
    const auto name = trim(rest.substr(0, comma));
    const auto type = param_type(name);
    if (!type) return Error{fmt::format("no parameter type '{}'", name)};
    kernel.params.push_back(*type);
    rest = comma < rest.size() ? trim(rest.substr(comma + 1)) : std::string_view{};
  }
  if (!builtin->accepts(kernel.params)) {
    return Error{fmt::format("'{}' takes {}", kernel.builtin, builtin->signature)};
  }
  return kernel;
}

Result<GlobalText> parse_global(std::string_view rest) {
  GlobalText global;
  global.name = take_word(rest);
  if (global.name.empty() || !take(rest, '=')) return Error{"not 'global NAME = BYTES'"};
  auto bytes = parse_bytes(rest);
  if (!bytes) return bytes.error();
  if (bytes->count < 1) return Error{"a global has at least one byte"};
  global.bytes = static_cast<std::size_t>(bytes->count);
  return global;
}

template <typename List>
bool has_name(const List& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(), [&](const auto& one) { return one.name == name; });
}

Result<void> parse_line(ModuleText& module, std::string_view line) {
  const auto word = take_word(line);
  if (word == "kernel") {
    auto kernel = parse_kernel(line);
    if (!kernel) return kernel.error();
    if (has_name(module.kernels, kernel->name)) return Error{"kernel given twice"};
    module.kernels.push_back(std::move(*kernel));
    return {};
  }
  if (word == "global") {
    auto global = parse_global(line);
    if (!global) return global.error();
    if (has_name(module.globals, global->name)) return Error{"global given twice"};
    module.globals.push_back(std::move(*global));
    return {};
  }
  return Error{fmt::format("'{}' is neither kernel nor global", word)};
}

}  // namespace

std::size_t size_of(ParamType type) {
  switch (type) {
    case ParamType::kU8:
      return 1;
    case ParamType::kU16:
      return 2;
    case ParamType::kU32:
    case ParamType::kF32:
      return 4;
    case ParamType::kPointer:
    case ParamType::kU64:
    case ParamType::kF64:
      break;
  }
  return 8;
}

Result<ModuleText> parse_module(std::string_view text) {
  ModuleText module;
  if (const auto at = text.find(".target sm_"); at != std::string_view::npos) {
    const auto digits = text.substr(at + std::string_view(".target sm_").size(), 2);
    if (auto value = parse_integer(digits, 10, 99)) module.target = static_cast<int>(*value);
  }
  int number = 0;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = trim(text.substr(0, end));
    text = end < text.size() ? text.substr(end + 1) : std::string_view{};
    ++number;
    if (line.substr(0, kMark.size()) != kMark) continue;
    if (auto parsed = parse_line(module, line.substr(kMark.size())); !parsed) {
      return parsed.error().with_context(fmt::format("line {}", number));
    }
  }
  return module;
}

}  // namespace nvshare::softgpu
