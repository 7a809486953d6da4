#include "daemon/tenant_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/run_name.h"

namespace nvshare::daemon {

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool is_container_id(std::string_view text) {
  return text.size() == kIdLength && is_hex(text);
}

TenantName user_tenant(std::uint32_t uid) {
  return {TenantKind::User, fmt::format("{}{}", kUserPrefix, uid), uid};
}

TenantName container_tenant(std::string_view id, std::uint32_t uid) {
  const std::size_t longest =
      is_container_id(id) ? kShownIdLength : kLongestName - kContainerPrefix.size();
  std::string name(id.substr(0, longest));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !is_name_letter(c); }, '_');
  return {TenantKind::Container, std::string(kContainerPrefix) + name, uid};
}

std::optional<TenantName> tenant_called(const std::string& name, std::uint32_t uid) {
  if (name.starts_with(kContainerPrefix)) return TenantName{TenantKind::Container, name, uid};
  if (!name.starts_with(kUserPrefix)) return std::nullopt;
  // The largest number stands for nobody.
  const auto number = parse_integer(name.substr(kUserPrefix.size()), 0, UINT32_MAX - 1);
  if (!number) return std::nullopt;
  TenantName user = user_tenant(static_cast<std::uint32_t>(*number));
  return user.name == name ? std::optional(std::move(user)) : std::nullopt;
}

}  // namespace nvshare::daemon
