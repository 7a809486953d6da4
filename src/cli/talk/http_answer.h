#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace nvshare::cli {

struct HttpAnswer {
  int status = 0;
  std::string body;

  friend bool operator==(const HttpAnswer&, const HttpAnswer&) = default;
};

// Reads one answer of HTTP/1.1, in whatever parts it comes: a body with Content-Length, in chunks,
// or up to the end of the connection. Pure. After an error the reader reads no more.
class HttpReader {
 public:
  static constexpr std::size_t kLongestHead = 64 << 10;
  static constexpr std::size_t kLongestBody = 16 << 20;

  // True when the answer is complete. What comes behind it is left alone.
  Result<bool> take(std::string_view bytes);
  // The connection has ended. An error where the answer is not complete without more bytes.
  Result<void> end();
  // The answer, once it is complete.
  const HttpAnswer& answer() const { return answer_; }

 private:
  enum class Part { StatusLine, Headers, Length, ToTheEnd, ChunkSize, Chunk, ChunkEnd, Trailers };

  Result<void> read_line(std::string_view line);
  Result<void> read_status_line(std::string_view line);
  Result<void> read_header(std::string_view line);
  Result<void> read_chunk_size(std::string_view line);
  Result<void> begin_body();
  bool reads_body() const;
  Result<std::size_t> take_body(std::string_view bytes);
  Result<std::size_t> take_line(std::string_view bytes);

  Part part_ = Part::StatusLine;
  bool complete_ = false;
  std::string line_;      // of which the end has not come
  std::size_t head_ = 0;  // bytes of lines so far
  std::optional<std::size_t> length_;
  bool chunked_ = false;
  std::size_t left_ = 0;  // of the body, or of a chunk
  HttpAnswer answer_;
};

}  // namespace nvshare::cli
