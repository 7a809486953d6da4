#include "cli/show/terminal_frame.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

TEST(TerminalFrame, IsDrawnOverWhatWasThere) {
  EXPECT_EQ(terminal_frame("one\n\nthree\n", {24, 80}),
            "\033[H\033[Kone\n\033[K\n\033[Kthree\n\033[J");
  EXPECT_EQ(terminal_frame("", {24, 80}), "\033[H\033[J");
}

TEST(TerminalFrame, HasNoMoreLinesThanTheTerminal) {
  const std::string text = "one\ntwo\nthree\nfour\n";
  EXPECT_EQ(terminal_frame(text, {5, 80}), terminal_frame(text, {99, 80}));
  EXPECT_EQ(terminal_frame(text, {4, 80}),
            "\033[H\033[Kone\n\033[Ktwo\n\033[K... and 2 more lines\n\033[J");
  EXPECT_EQ(terminal_frame(text, {2, 80}), "\033[H\033[K... and 4 more lines\n\033[J");
  EXPECT_EQ(terminal_frame(text, {1, 80}), "\033[H\033[J");
}

TEST(TerminalFrame, HasNoLongerLinesThanTheTerminal) {
  EXPECT_EQ(terminal_frame("0123456789\n", {24, 4}), "\033[H\033[K0123\n\033[J");
  EXPECT_EQ(terminal_frame("01\033[32m23456\033[0m789\n", {24, 4}),
            "\033[H\033[K01\033[32m23\033[0m\n\033[J")
      << "colours take no room, and end";
  EXPECT_EQ(terminal_frame("\u00e9\u00e9\u00e9\n", {24, 2}), "\033[H\033[K\u00e9\u00e9\n\033[J");
  EXPECT_EQ(terminal_frame("\033[32\n", {24, 2}), "\033[H\033[K\033[32\n\033[J")
      << "is no end of it";
}

TEST(TerminalFrame, WithoutASizeIsWhole) {
  EXPECT_EQ(terminal_frame("0123456789\nnext\n", {}), "\033[H\033[K0123456789\n\033[Knext\n\033[J");
}

}  // namespace
}  // namespace nvshare::cli
