#include "cli/talk/http_answer.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace nvshare::cli {
namespace {

Error no_http() {
  return Error{"the scheduler's answer is no HTTP"};
}
Error too_long() {
  return Error{"the scheduler's answer is too long"};
}

// A whole number with nothing around it. Numbers above the longest body are as bad as no numbers.
Result<std::size_t> read_length(std::string_view text, int base) {
  std::size_t value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (status == std::errc::result_out_of_range) return too_long();
  if (status != std::errc{} || stop != text.data() + text.size()) return no_http();
  if (value > HttpReader::kLongestBody) return too_long();
  return value;
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view without_blanks(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<bool> HttpReader::take(std::string_view bytes) {
  while (!complete_ && !bytes.empty()) {
    const auto taken = reads_body() ? take_body(bytes) : take_line(bytes);
    if (!taken) return taken.error();
    bytes.remove_prefix(*taken);
  }
  return complete_;
}

Result<void> HttpReader::end() {
  if (part_ == Part::ToTheEnd) complete_ = true;
  if (!complete_)
    return Error{"the scheduler closed the connection before its answer was complete"};
  return {};
}

bool HttpReader::reads_body() const {
  return part_ == Part::Length || part_ == Part::ToTheEnd || part_ == Part::Chunk;
}

Result<std::size_t> HttpReader::take_body(std::string_view bytes) {
  const std::size_t most = part_ == Part::ToTheEnd ? bytes.size() : left_;
  const std::size_t taken = std::min(most, bytes.size());
  if (taken > kLongestBody - answer_.body.size()) return too_long();
  answer_.body.append(bytes.substr(0, taken));
  if (part_ == Part::ToTheEnd) return taken;
  left_ -= taken;
  if (left_ == 0 && part_ == Part::Length) complete_ = true;
  if (left_ == 0 && part_ == Part::Chunk) part_ = Part::ChunkEnd;
  return taken;
}

Result<std::size_t> HttpReader::take_line(std::string_view bytes) {
  const std::size_t end = bytes.find('\n');
  const std::size_t taken = end == bytes.npos ? bytes.size() : end + 1;
  head_ += taken;
  if (head_ > kLongestHead) return too_long();
  line_.append(bytes.substr(0, taken));
  if (end == bytes.npos) return taken;
  line_.pop_back();
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  const std::string line = std::exchange(line_, {});
  if (const auto read = read_line(line); !read) return read.error();
  return taken;
}

Result<void> HttpReader::read_line(std::string_view line) {
  switch (part_) {
    case Part::StatusLine:
      return read_status_line(line);
    case Part::Headers:
      return line.empty() ? begin_body() : read_header(line);
    case Part::ChunkSize:
      return read_chunk_size(line);
    case Part::ChunkEnd:
      part_ = Part::ChunkSize;
      // The lines between chunks are no head: their number is bounded by the body's bytes.
      head_ = 0;
      return line.empty() ? Result<void>{} : no_http();
    case Part::Trailers:
      complete_ = line.empty();
      return {};
    default:
      return no_http();
  }
}

// "HTTP/1.1 201 Created"
Result<void> HttpReader::read_status_line(std::string_view line) {
  constexpr std::string_view kVersion = "HTTP/1.";
  if (line.size() < 12 || line.substr(0, kVersion.size()) != kVersion || line[8] != ' ') {
    return no_http();
  }
  const auto status = read_length(line.substr(9, 3), 10);
  if (!status || *status < 100 || (line.size() > 12 && line[12] != ' ')) return no_http();
  answer_.status = static_cast<int>(*status);
  part_ = Part::Headers;
  return {};
}

Result<void> HttpReader::read_header(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos || colon == 0) return no_http();
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = without_blanks(line.substr(colon + 1));
  if (same_word(name, "Transfer-Encoding")) {
    if (!same_word(value, "chunked")) return no_http();
    chunked_ = true;
  }
  if (same_word(name, "Content-Length")) {
    const auto length = read_length(value, 10);
    if (!length) return length.error();
    if (length_ && *length_ != *length) return no_http();
    length_ = *length;
  }
  return {};
}

Result<void> HttpReader::begin_body() {
  if (answer_.status < 200) {  // "100 Continue": the answer itself comes behind it
    if (answer_.status == 101) return no_http();
    part_ = Part::StatusLine;
    length_.reset();
    chunked_ = false;
    return {};
  }
  if (answer_.status == 204 || answer_.status == 304) {
    complete_ = true;
  } else if (chunked_) {
    part_ = Part::ChunkSize;
  } else if (length_) {
    part_ = Part::Length;
    left_ = *length_;
    complete_ = left_ == 0;
  } else {
    part_ = Part::ToTheEnd;
  }
  return {};
}

// "1a3f", perhaps with ";name=value" behind it.
Result<void> HttpReader::read_chunk_size(std::string_view line) {
  const auto size = read_length(without_blanks(line.substr(0, line.find(';'))), 16);
  if (!size) return size.error();
  left_ = *size;
  part_ = left_ == 0 ? Part::Trailers : Part::Chunk;
  return {};
}

}  // namespace nvshare::cli
