#include "cli/talk/http_answer.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

// The answer, or the error's text. Nothing when it is not complete.
std::string read_in_parts(std::string_view text, std::size_t part, bool ends = false) {
  HttpReader reader;
  for (std::size_t at = 0; at < text.size(); at += part) {
    const auto done = reader.take(text.substr(at, part));
    if (!done) return done.error().message;
    if (*done) return std::to_string(reader.answer().status) + " " + reader.answer().body;
  }
  if (!ends) return "";
  if (const auto ended = reader.end(); !ended) return ended.error().message;
  return std::to_string(reader.answer().status) + " " + reader.answer().body;
}

// The same, checked to be the same in one piece and byte by byte.
std::string read(std::string_view text, bool ends = false) {
  const std::string whole = read_in_parts(text, text.size(), ends);
  EXPECT_EQ(read_in_parts(text, 1, ends), whole) << text;
  return whole;
}

TEST(HttpAnswer, ABodyHasTheLengthThatTheHeadSays) {
  EXPECT_EQ(read("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
                 "\r\nhello and more"),
            "201 hello");
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n"), "200 ");
  EXPECT_EQ(read("HTTP/1.0 200\nContent-Length: 2\n\nab"), "200 ab") << "lines without CR";
}

TEST(HttpAnswer, ABodyInChunksIsPutTogether) {
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                 "5\r\nhello\r\nA;x=y\r\n, 10 bytes\r\n0\r\nDate: now\r\n\r\n"),
            "200 hello, 10 bytes");
}

TEST(HttpAnswer, ABodyWithoutALengthGoesToTheEnd) {
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\n\r\nall of it", true), "200 all of it");
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\n\r\nall of it"), "") << "the end has not come";
}

TEST(HttpAnswer, SomeAnswersHaveNoBody) {
  EXPECT_EQ(read("HTTP/1.1 204 No Content\r\n\r\n"), "204 ");
  EXPECT_EQ(read("HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 409 Conflict\r\n"
                 "Content-Length: 2\r\n\r\n{}"),
            "409 {}");
}

TEST(HttpAnswer, AnAnswerThatBreaksOffIsAnError) {
  const std::string broken = "the scheduler closed the connection before its answer was complete";
  for (const char* text :
       {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"}) {
    EXPECT_EQ(read_in_parts(text, 7, true), broken) << text;
  }
}

TEST(HttpAnswer, WhatIsNoHttpIsAnError) {
  const std::string no_http = "the scheduler's answer is no HTTP";
  for (const char* text :
       {"{\"ok\":true}\n", "HTTP/2 200 OK\r\n", "HTTP/1.1 2x0 OK\r\n", "HTTP/1.1 2000\r\n",
        "HTTP/1.1 099 No\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5 6\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n"}) {
    EXPECT_EQ(read(text), no_http) << text;
  }
}

TEST(HttpAnswer, ALongAnswerIsRefusedBeforeItIsKept) {
  const std::string too_long = "the scheduler's answer is too long";
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\nContent-Length: 16777217\r\n"), too_long);
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n"), too_long);
  const std::string chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(read(chunks + "ffffffffffffffff\r\n"), too_long);
  const std::string most = chunks + "1000000\r\n" + std::string(HttpReader::kLongestBody, 'a');
  EXPECT_EQ(read_in_parts(most + "\r\n0\r\n\r\n", 4096).size(), 4 + HttpReader::kLongestBody);
  EXPECT_EQ(read_in_parts(most + "\r\n1\r\nb\r\n", 4096), too_long);
  const std::string open = "HTTP/1.1 200 OK\r\n\r\n" + std::string(HttpReader::kLongestBody, 'a');
  EXPECT_EQ(read_in_parts(open, 4096), "");
  EXPECT_EQ(read_in_parts(open + "b", 4096), too_long);
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\nX: " + std::string(HttpReader::kLongestHead, 'a')), too_long);
  EXPECT_EQ(read(std::string(HttpReader::kLongestHead + 1, 'a')), too_long);
}

// Chunks have lines of their own. They are no part of the head, which has its own bound.
TEST(HttpAnswer, ManySmallChunksAreNoLongHead) {
  std::string text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 40000; ++i) text += "1\r\na\r\n";
  EXPECT_EQ(read_in_parts(text + "0\r\n\r\n", 4096).size(), 4u + 40000u);
}

}  // namespace
}  // namespace nvshare::cli
