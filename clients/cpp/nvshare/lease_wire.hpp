#pragma once

// What nvshare/lease.hpp needs of JSON and HTTP. No part of its interface.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace nvshare::lease_detail {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// --- JSON --------------------------------------------------------------------------------------

// The texts and whole numbers of one JSON object. Everything else in it is read and left out.
class JsonObject {
 public:
  // Nothing unless the whole text is one object in correct JSON, with each key once.
  static std::optional<JsonObject> parse(std::string_view text);

  const std::string* text(const std::string& key) const {
    const auto at = texts_.find(key);
    return at == texts_.end() ? nullptr : &at->second;
  }
  std::optional<std::int64_t> number(const std::string& key) const {
    const auto at = numbers_.find(key);
    return at == numbers_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  friend class JsonReader;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::int64_t> numbers_;
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  bool whole(JsonObject& into) {
    blanks();
    if (!object(&into, 0)) return false;
    blanks();
    return at_ == text_.size();
  }

 private:
  // A deeper text is refused, because each level takes stack.
  static constexpr int kDeepest = 8;

  bool end() const { return at_ == text_.size(); }
  char peek() const { return end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  void blanks() {
    while (!end() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != '\0') ++at_;
  }

  // `into`: where the values of this object go; null: nowhere.
  bool object(JsonObject* into, int depth) {
    if (!take('{') || depth == kDeepest) return false;
    blanks();
    if (take('}')) return true;
    std::map<std::string, bool> seen;
    do {
      std::string key;
      blanks();
      if (!text(key) || !seen.emplace(key, true).second) return false;
      blanks();
      if (!take(':') || !value(into, key, depth)) return false;
      blanks();
    } while (take(','));
    return take('}');
  }

  bool array(int depth) {
    if (!take('[') || depth == kDeepest) return false;
    blanks();
    if (take(']')) return true;
    do {
      if (!value(nullptr, "", depth)) return false;
      blanks();
    } while (take(','));
    return take(']');
  }

  bool value(JsonObject* into, const std::string& key, int depth) {
    blanks();
    switch (peek()) {
      case '{':
        return object(nullptr, depth + 1);
      case '[':
        return array(depth + 1);
      case '"': {
        std::string read;
        if (!text(read)) return false;
        if (into != nullptr) into->texts_[key] = std::move(read);
        return true;
      }
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number(into, key);
    }
  }

  bool digits() {
    const std::size_t before = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > before;
  }

  bool number(JsonObject* into, const std::string& key) {
    const std::size_t begin = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    const std::size_t whole_end = at_;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    std::int64_t read = 0;
    const char* const last = text_.data() + at_;
    const auto [stop, error] = std::from_chars(text_.data() + begin, last, read);
    const bool is_whole = at_ == whole_end && error == std::errc{} && stop == last;
    if (is_whole && into != nullptr) into->numbers_[key] = read;
    return true;
  }

  bool text(std::string& into) {
    if (!take('"')) return false;
    while (!end()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        into += c;
      } else if (!escaped(into)) {
        return false;
      }
    }
    return false;
  }

  bool escaped(std::string& into) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    if (end()) return false;
    const char c = text_[at_++];
    if (c == 'u') return code_point(into);
    const std::size_t which = kNames.find(c);
    if (which == kNames.npos) return false;
    into += kMeant[which];
    return true;
  }

  bool four_digits(std::uint32_t& into) {
    if (text_.size() - at_ < 4) return false;
    const char* const begin = text_.data() + at_;
    at_ += 4;
    const auto [stop, error] = std::from_chars(begin, begin + 4, into, 16);
    return error == std::errc{} && stop == begin + 4;
  }

  bool code_point(std::string& into) {
    std::uint32_t code = 0;
    if (!four_digits(code) || (code >= 0xdc00 && code < 0xe000)) return false;
    if (code >= 0xd800 && code < 0xdc00) {
      std::uint32_t low = 0;
      if (!word("\\u") || !four_digits(low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    const auto put = [&](std::uint32_t byte) { into += static_cast<char>(byte); };
    const auto more = [&](int bits) { put(0x80 | ((code >> bits) & 0x3f)); };
    if (code < 0x80) return put(code), true;
    if (code < 0x800) return put(0xc0 | (code >> 6)), more(0), true;
    if (code < 0x10000) return put(0xe0 | (code >> 12)), more(6), more(0), true;
    return put(0xf0 | (code >> 18)), more(12), more(6), more(0), true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

inline std::optional<JsonObject> JsonObject::parse(std::string_view text) {
  JsonObject read;
  if (!JsonReader(text).whole(read)) return std::nullopt;
  return read;
}

inline std::string json_text(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string made = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      made += {'\\', 'u', '0', '0', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      if (c == '"' || c == '\\') made += '\\';
      made += c;
    }
  }
  return made + '"';
}

// "2026-11-19T20:00:30.123Z".
inline std::optional<std::chrono::system_clock::time_point> parse_time(std::string_view text) {
  static constexpr std::string_view kForm = "0000-00-00T00:00:00.000Z";
  if (text.size() != kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kForm[i] == '0' ? !digit : text[i] != kForm[i]) return std::nullopt;
  }
  const auto part = [&](std::size_t from, std::size_t count) {
    std::int64_t value = 0;
    for (const char c : text.substr(from, count)) value = value * 10 + (c - '0');
    return value;
  };
  const std::int64_t month = part(5, 2), day = part(8, 2);
  if (month < 1 || month > 12 || day < 1 || day > 31) return std::nullopt;
  // Times beyond these years do not fit into a time_point.
  if (part(0, 4) < 1970 || part(0, 4) > 2199) return std::nullopt;
  if (part(11, 2) > 23 || part(14, 2) > 59 || part(17, 2) > 60) return std::nullopt;
  // Years begin in March, so that a leap day is a year's last.
  const std::int64_t year = part(0, 4) - (month <= 2 ? 1 : 0);
  const std::int64_t day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
  constexpr std::int64_t kDaysTo1970 = 719468;
  const std::int64_t days =
      year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - kDaysTo1970;
  const std::int64_t seconds = ((days * 24 + part(11, 2)) * 60 + part(14, 2)) * 60 + part(17, 2);
  return std::chrono::system_clock::time_point(Milliseconds(seconds * 1000 + part(20, 3)));
}

// --- HTTP --------------------------------------------------------------------------------------

inline constexpr std::size_t kLongestAnswer = 64 * 1024;  // of head and body together

struct HttpAnswer {
  int status = 0;    // 0: there is no answer,
  std::string body;  // and this says why
};

inline bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

enum class HttpState { Incomplete, Complete, Bad };

// Reads what has come so far; `ended`: no more comes.
inline HttpState read_http(std::string_view text, bool ended, HttpAnswer& into) {
  const auto unfinished = ended ? HttpState::Bad : HttpState::Incomplete;
  const std::size_t head_end = text.find("\r\n\r\n");
  if (head_end == text.npos) return unfinished;
  std::string_view head = text.substr(0, head_end);
  const std::string_view rest = text.substr(head_end + 4);
  int status = 0;
  constexpr std::string_view kBegin = "HTTP/1.";
  if (head.size() < 12 || head.substr(0, kBegin.size()) != kBegin || head[8] != ' ') {
    return HttpState::Bad;
  }
  const auto [stop, error] = std::from_chars(head.data() + 9, head.data() + 12, status);
  if (error != std::errc{} || stop != head.data() + 12 || status < 200) return HttpState::Bad;

  std::optional<std::size_t> length;
  for (std::size_t line_end = head.find("\r\n"); line_end != head.npos;) {
    head.remove_prefix(line_end + 2);
    line_end = head.find("\r\n");
    const std::string_view line = head.substr(0, line_end);
    const std::size_t colon = line.find(':');
    if (colon == line.npos) return HttpState::Bad;
    const std::string_view name = line.substr(0, colon);
    if (same_word(name, "Transfer-Encoding")) return HttpState::Bad;
    if (!same_word(name, "Content-Length")) continue;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) {
      value.remove_prefix(1);
    }
    std::size_t read = 0;
    const char* const last = value.data() + value.size();
    const auto [number_end, wrong] = std::from_chars(value.data(), last, read);
    if (wrong != std::errc{} || number_end != last || length) return HttpState::Bad;
    length = read;
  }
  if (!length && status != 204 && !ended) return HttpState::Incomplete;
  if (length && *length > rest.size()) return unfinished;
  into = {status, std::string(rest.substr(0, length.value_or(rest.size())))};
  return HttpState::Complete;
}

// A time from the user, so that sums of it do not overflow.
inline Milliseconds bounded(Milliseconds time) {
  return std::clamp<Milliseconds>(time, Milliseconds(0), std::chrono::hours(24));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Without a descriptor this only waits. False after the deadline.
inline bool wait_for(int fd, short events, Clock::time_point deadline, Milliseconds most) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
  if (left.count() <= 0) return false;
  pollfd one{fd, events, 0};
  ::poll(&one, 1, static_cast<int>(std::min(left, most).count()));
  return true;
}

inline int connect_socket(int fd, const std::string& path, Clock::time_point deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  for (;;) {
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return 0;
    if (errno != EAGAIN && errno != EINTR) return errno;
    // The scheduler's queue of connections is full.
    if (!wait_for(-1, 0, deadline, Milliseconds(5))) return EAGAIN;
  }
}

// One request on a connection of its own.
inline HttpAnswer ask_http(const std::string& path, const std::string& request,
                           Clock::time_point deadline) {
  constexpr Milliseconds kLong = std::chrono::minutes(1);
  const HttpAnswer silent{0, "the scheduler does not answer in time"};
  const Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int error = socket.get() < 0 ? errno : connect_socket(socket.get(), path, deadline);
  if (error == EAGAIN) return silent;
  if (error != 0) return {0, path + ": " + std::strerror(error)};

  std::string_view unsent = request;
  while (!unsent.empty()) {
    const auto sent = ::send(socket.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) unsent.remove_prefix(static_cast<std::size_t>(sent));
    if (sent >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) break;  // a refusal may be there to be read all the same
    if (!wait_for(socket.get(), POLLOUT, deadline, kLong)) return silent;
  }

  std::string received;
  for (;;) {
    char part[4096];
    const auto got = ::recv(socket.get(), part, sizeof part, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (!wait_for(socket.get(), POLLIN, deadline, kLong)) return silent;
      continue;
    }
    if (got > 0) received.append(part, static_cast<std::size_t>(got));
    if (received.size() > kLongestAnswer) return {0, "the scheduler's answer is too long"};
    HttpAnswer answer;
    const HttpState state = read_http(received, got <= 0, answer);
    if (state == HttpState::Complete) return answer;
    if (state == HttpState::Bad) return {0, "the scheduler's answer is no whole HTTP answer"};
  }
}

inline HttpAnswer ask(const std::string& socket, std::string_view method, const std::string& path,
                      const std::string& body, Milliseconds within) {
  std::string request(method);
  request += ' ' + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
  request += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size());
  request += "\r\n\r\n" + body;
  return ask_http(socket, request, Clock::now() + bounded(within));
}

// Why a request was refused, by the answer's own words.
inline std::string line_of(const HttpAnswer& answer) {
  if (answer.status == 0) return answer.body;
  const auto said = JsonObject::parse(answer.body);
  const std::string* line = said ? said->text("reason") : nullptr;
  if (said && line == nullptr) line = said->text("error");
  if (line != nullptr) return *line;
  return "the scheduler's answer makes no sense (HTTP " + std::to_string(answer.status) + ")";
}

}  // namespace nvshare::lease_detail
