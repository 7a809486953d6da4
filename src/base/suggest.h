#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nvshare {

// The candidate that `word` was most likely meant to be: few letters changed, added, left out or
// swapped. Nothing when none is near.
std::optional<std::string_view> closest(std::string_view word,
                                        const std::vector<std::string_view>& candidates);

// "; did you mean 'memory'?", or nothing: to put behind a message.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

// "wall, weighted, hybrid".
std::string join(const std::vector<std::string_view>& words, std::string_view between = ", ");

}  // namespace nvshare
