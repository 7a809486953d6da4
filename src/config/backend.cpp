#include "config/backend.h"

namespace nvshare::config {

std::string_view name_of(wire::Backend backend) {
  switch (backend) {
    case wire::Backend::Native:
      return "native";
    case wire::Backend::Swap:
      return "swap";
    case wire::Backend::Managed:
      return "managed";
    case wire::Backend::Default:
      break;
  }
  return "default";
}

std::optional<wire::Backend> backend_by_name(std::string_view name) {
  for (const auto backend : {wire::Backend::Native, wire::Backend::Swap, wire::Backend::Managed}) {
    if (name == name_of(backend)) return backend;
  }
  return std::nullopt;
}

}  // namespace nvshare::config
