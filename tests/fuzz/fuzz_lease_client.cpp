// Any bytes are an answer of a scheduler to the C++ client, or no answer, and JSON or none.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "nvshare/lease.hpp"

namespace {

using namespace nvshare::lease_detail;

// What the client takes, a whole parser takes with the same values.
void compare(std::string_view text) {
  const auto ours = JsonObject::parse(text);
  if (!ours) return;
  nlohmann::json theirs;
  try {
    theirs = nlohmann::json::parse(text);
  } catch (const nlohmann::json::out_of_range&) {
    return;  // a number that is too large for it
  } catch (const nlohmann::json::parse_error&) {
    // The client does not look whether texts are UTF-8.
    const auto ascii = [](char c) { return static_cast<signed char>(c) > 0; };
    if (std::all_of(text.begin(), text.end(), ascii)) std::abort();
    return;
  }
  if (!theirs.is_object()) std::abort();
  for (const auto& [key, value] : theirs.items()) {
    const std::string* const read = ours->text(key);
    if (value.is_string() != (read != nullptr)) std::abort();
    if (read != nullptr && *read != value.get_ref<const std::string&>()) std::abort();
    const auto number = ours->number(key);
    if (number && (!value.is_number_integer() || value.get<std::int64_t>() != *number)) {
      std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  compare(bytes);
  HttpAnswer so_far, at_the_end;
  const HttpState state = read_http(bytes, false, so_far);
  const HttpState last = read_http(bytes, true, at_the_end);
  if (last == HttpState::Incomplete) std::abort();
  if (state == HttpState::Complete && so_far.body != at_the_end.body) std::abort();
  if (at_the_end.body.size() > size) std::abort();
  if (last == HttpState::Complete) compare(at_the_end.body);
  parse_time(bytes);
  line_of({400, std::string(bytes)});
  return 0;
}
