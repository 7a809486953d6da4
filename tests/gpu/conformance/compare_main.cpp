// Compares an output of the conformance program with the recorded one of a real card.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "compare.h"

namespace nvshare::conformance {
namespace {

Result<std::string> read_whole(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::ifstream file(path);
  if (!file) return Error{path + ": cannot be read"};
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

int fail(const Error& error) {
  std::fprintf(stderr, "compare: %s\n", error.message.c_str());
  return 2;
}

int compare(const std::string& expected_path, const std::string& actual_path,
            const std::string& allowed_path) {
  const auto expected = read_whole(expected_path);
  if (!expected) return fail(expected.error());
  const auto actual = read_whole(actual_path);
  if (!actual) return fail(actual.error());
  const auto allowed_text = read_whole(allowed_path);
  if (!allowed_text) return fail(allowed_text.error());
  const auto allowed = parse_allowed(*allowed_text);
  if (!allowed) return fail(allowed.error().with_context(allowed_path));

  const auto expected_lines = placed_lines(*expected);
  const auto found = difference(expected_lines, placed_lines(*actual));
  const Verdict verdict = judge(found, *allowed);
  for (const std::string& line : verdict.unexplained) std::printf("%s\n", line.c_str());
  for (const std::string& line : verdict.stale) {
    std::printf("listed in %s, but there is no such difference: %s\n", allowed_path.c_str(),
                line.c_str());
  }
  std::printf("%zu lines expected, %zu different, %zu of these not explained, %zu listed in vain\n",
              expected_lines.size(), found.size(), verdict.unexplained.size(),
              verdict.stale.size());
  return verdict.good() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace nvshare::conformance

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr,
                 "usage: conformance_compare EXPECTED ACTUAL DIFFERENCES\n"
                 "ACTUAL may be - for standard input.\n");
    return 2;
  }
  return nvshare::conformance::compare(argv[1], argv[2], argv[3]);
}
