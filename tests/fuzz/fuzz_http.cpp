// Any bytes are an answer or an error, in whatever parts they come.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "cli/talk/http_answer.h"

namespace {

using nvshare::cli::HttpAnswer;
using nvshare::cli::HttpReader;

// Nothing where it is an error, or does not end.
std::optional<HttpAnswer> read_in_parts(std::string_view bytes, std::size_t part) {
  HttpReader reader;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(part, bytes.size()))) {
    const auto done = reader.take(bytes.substr(0, part));
    if (!done) return std::nullopt;
    if (*done) return reader.answer();
  }
  if (!reader.end()) return std::nullopt;
  return reader.answer();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto whole = read_in_parts(bytes, size + 1);
  if (whole != read_in_parts(bytes, 1) || whole != read_in_parts(bytes, 7)) std::abort();
  if (whole && (whole->status < 200 || whole->status > 999)) std::abort();
  if (whole && whole->body.size() > size) std::abort();
  return 0;
}
