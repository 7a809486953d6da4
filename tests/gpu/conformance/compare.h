#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nvshare::conformance {

// Lines of the conformance program's output, each with where it stands: the heading above it and,
// for a value, the call it belongs to. So a difference is about one place and not about a text that
// occurs in many.
//   section  [heading] cuCall(arguments) -> RESULT
//   section  [heading] cuCall(arguments) | what = value
std::vector<std::string> placed_lines(std::string_view output);

// What two outputs do not share, in order: "- line" is only in the expected one, "+ line" only in
// the actual one.
std::vector<std::string> difference(const std::vector<std::string>& expected,
                                    const std::vector<std::string>& actual);

// Differences that are allowed, and the reason why.
struct Allowed {
  std::string why;
  std::vector<std::string> lines;  // as difference() gives them
};

// Reads paragraphs that begin with "why: REASON" and go on with "- line" and "+ line"; lines with #
// are comments. A paragraph without a reason or without a line is an error.
Result<std::vector<Allowed>> parse_allowed(std::string_view text);

struct Verdict {
  std::vector<std::string> unexplained;  // found, not allowed
  std::vector<std::string> stale;        // allowed, not found (any more)

  bool good() const { return unexplained.empty() && stale.empty(); }
};

// Each allowed line excuses one found line.
Verdict judge(const std::vector<std::string>& found, const std::vector<Allowed>& allowed);

}  // namespace nvshare::conformance
