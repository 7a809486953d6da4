#include "cli/terminal_frame.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

TEST(TerminalFrame, IsDrawnOverWhatWasThere) {
  EXPECT_EQ(terminal_frame("one\n\nthree\n", {24, 80}),
            "\033[Hone\033[K\n\033[K\nthree\033[K\n\033[J");
  EXPECT_EQ(terminal_frame("", {24, 80}), "\033[H\033[J");
}

TEST(TerminalFrame, HasNoMoreLinesThanTheTerminal) {
  const std::string text = "one\ntwo\nthree\nfour\n";
  EXPECT_EQ(terminal_frame(text, {5, 80}), terminal_frame(text, {99, 80}));
  EXPECT_EQ(terminal_frame(text, {4, 80}),
            "\033[Hone\033[K\ntwo\033[K\n... and 2 more lines\033[K\n\033[J");
  EXPECT_EQ(terminal_frame(text, {2, 80}), "\033[H... and 4 more lines\033[K\n\033[J");
  EXPECT_EQ(terminal_frame(text, {1, 80}), "\033[H\033[J");
}

TEST(TerminalFrame, HasNoLongerLinesThanTheTerminal) {
  EXPECT_EQ(terminal_frame("0123456789\n", {24, 4}), "\033[H0123\033[K\n\033[J");
  EXPECT_EQ(terminal_frame("01\033[32m23456\033[0m789\n", {24, 4}),
            "\033[H01\033[32m23\033[0m\033[K\n\033[J")
      << "colours take no room, and end";
  EXPECT_EQ(terminal_frame("\u00e9\u00e9\u00e9\n", {24, 2}), "\033[H\u00e9\u00e9\033[K\n\033[J");
  EXPECT_EQ(terminal_frame("\033[32\n", {24, 2}), "\033[H\033[32\033[K\n\033[J")
      << "is no end of it";
}

TEST(TerminalFrame, WithoutASizeIsWhole) {
  EXPECT_EQ(terminal_frame("0123456789\nnext\n", {}), "\033[H0123456789\033[K\nnext\033[K\n\033[J");
}

}  // namespace
}  // namespace nvshare::cli
