#include "compare.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace nvshare::conformance {
namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool starts_with(const std::string& text, std::string_view beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}

// The longest common subsequence of the tails that begin at each pair of places.
class CommonTails {
 public:
  CommonTails(const std::vector<std::string>& a, const std::vector<std::string>& b)
      : width_(b.size() + 1), lengths_((a.size() + 1) * width_, 0) {
    for (std::size_t i = a.size(); i-- > 0;) {
      for (std::size_t j = b.size(); j-- > 0;) {
        lengths_[i * width_ + j] =
            a[i] == b[j] ? 1 + length(i + 1, j + 1) : std::max(length(i + 1, j), length(i, j + 1));
      }
    }
  }
  std::uint32_t length(std::size_t i, std::size_t j) const { return lengths_[i * width_ + j]; }

 private:
  std::size_t width_;
  std::vector<std::uint32_t> lengths_;
};

}  // namespace

std::vector<std::string> placed_lines(std::string_view output) {
  std::vector<std::string> placed;
  std::string section;
  std::string heading;
  std::string call;
  for (const std::string& line : lines_of(output)) {
    const std::size_t gap = line.find("  ");
    if (gap == std::string::npos) {
      placed.push_back(line);
      continue;
    }
    const std::string rest = line.substr(gap + 2);
    if (line.substr(0, gap) != section) {
      section = line.substr(0, gap);
      heading.clear();
      call.clear();
    }
    if (starts_with(rest, "-- ")) {
      heading = "[" + rest.substr(3) + "]";
      call.clear();
      placed.push_back(section + "  " + heading);
      continue;
    }
    const std::string place = section + "  " + (heading.empty() ? "" : heading + " ");
    if (starts_with(rest, "  ")) {
      placed.push_back(place + call + (call.empty() ? "| " : " | ") + rest.substr(2));
    } else {
      call = rest.substr(0, rest.rfind(" -> "));
      placed.push_back(place + rest);
    }
  }
  return placed;
}

std::vector<std::string> difference(const std::vector<std::string>& expected,
                                    const std::vector<std::string>& actual) {
  const CommonTails tails(expected, actual);
  std::vector<std::string> found;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < expected.size() || j < actual.size()) {
    if (i < expected.size() && j < actual.size() && expected[i] == actual[j]) {
      ++i;
      ++j;
    } else if (j == actual.size() ||
               (i < expected.size() && tails.length(i + 1, j) >= tails.length(i, j + 1))) {
      found.push_back("- " + expected[i++]);
    } else {
      found.push_back("+ " + actual[j++]);
    }
  }
  return found;
}

Result<std::vector<Allowed>> parse_allowed(std::string_view text) {
  std::vector<Allowed> allowed;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    const auto wrong = [&](const char* what) {
      return Error{"line " + std::to_string(number) + ": " + what};
    };
    if (line.empty() || line[0] == '#') continue;
    if (starts_with(line, "why:")) {
      if (!allowed.empty() && allowed.back().lines.empty()) return wrong("no line above it");
      const std::size_t reason = line.find_first_not_of(' ', 4);
      if (reason == std::string::npos) return wrong("no reason");
      allowed.push_back({line.substr(reason), {}});
    } else if (starts_with(line, "- ") || starts_with(line, "+ ")) {
      if (allowed.empty()) return wrong("a difference without a reason above it");
      allowed.back().lines.push_back(line);
    } else {
      return wrong("neither 'why:', '- ' nor '+ '");
    }
  }
  if (!allowed.empty() && allowed.back().lines.empty()) return Error{"a reason without a line"};
  return allowed;
}

Verdict judge(const std::vector<std::string>& found, const std::vector<Allowed>& allowed) {
  std::map<std::string, int> left;
  for (const Allowed& each : allowed) {
    for (const std::string& line : each.lines) ++left[line];
  }
  Verdict verdict;
  for (const std::string& line : found) {
    const auto excuse = left.find(line);
    if (excuse == left.end() || excuse->second == 0) {
      verdict.unexplained.push_back(line);
    } else {
      --excuse->second;
    }
  }
  for (const auto& [line, count] : left) {
    for (int i = 0; i < count; ++i) verdict.stale.push_back(line);
  }
  return verdict;
}

}  // namespace nvshare::conformance
