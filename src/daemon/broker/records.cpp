#include "daemon/broker/records.h"

namespace nvshare::daemon {

std::string_view name_of(TenantKind kind) {
  switch (kind) {
    case TenantKind::Run:
      return "run";
    case TenantKind::Container:
      return "container";
    case TenantKind::User:
      return "user";
    case TenantKind::Pod:
      return "pod";
    case TenantKind::Cgroup:
      return "cgroup";
  }
  return "?";
}

std::string printable(const char* field, std::size_t size) {
  std::string text(field, wire::text_length(field, size));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace nvshare::daemon
