#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace nvshare {

// An identifier that cannot be mistaken for another kind of identifier or for a number.
template <typename Tag>
struct StrongId {
  std::uint64_t value = 0;

  friend auto operator<=>(const StrongId&, const StrongId&) = default;
};

}  // namespace nvshare

template <typename Tag>
struct std::hash<nvshare::StrongId<Tag>> {
  std::size_t operator()(const nvshare::StrongId<Tag>& id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};
