#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "softgpu/kernels.h"
#include "softgpu/module_text.h"

namespace nvshare::softgpu {
namespace {

TEST(ModuleText, ReadsItsLinesAndIgnoresTheRest) {
  const auto module = parse_module(
      ".version 8.0\n"
      "//@softgpu kernel fill32 = fill(ptr, u32, u64)\r\n"
      "  //@softgpu kernel wait = spin( u64 )\n"
      "//@softgpu global table = 4Ki\n"
      ".entry whatever { }\n");
  ASSERT_TRUE(module) << module.error().message;
  ASSERT_EQ(module->kernels.size(), 2u);
  EXPECT_EQ(module->kernels[0].name, "fill32");
  EXPECT_EQ(module->kernels[0].params.size(), 3u);
  EXPECT_EQ(module->kernels[1].builtin, "spin");
  ASSERT_EQ(module->globals.size(), 1u);
  EXPECT_EQ(module->globals[0].bytes, 4096u);
}

TEST(ModuleText, SaysWhatIsWrong) {
  const auto error = [](const char* text) { return parse_module(text).error().message; };
  EXPECT_EQ(error("\n//@softgpu kernel a = nothing()"), "line 2: no built-in kernel 'nothing'");
  EXPECT_EQ(error("//@softgpu kernel a = spin(u32)"), "line 1: 'spin' takes (u64)");
  EXPECT_EQ(error("//@softgpu kernel a = spin(v64)"), "line 1: no parameter type 'v64'");
  EXPECT_EQ(error("//@softgpu kernel a = spin"), "line 1: no list of types");
  EXPECT_EQ(error("//@softgpu texture a"), "line 1: 'texture' is neither kernel nor global");
  EXPECT_EQ(error("//@softgpu kernel a = noop()\n//@softgpu kernel a = noop()"),
            "line 2: kernel given twice");
  EXPECT_FALSE(parse_module("//@softgpu"));
  EXPECT_FALSE(parse_module("//@softgpu global x = 0"));
}

TEST(ModuleText, AnyTextIsAModule) {
  EXPECT_TRUE(parse_module(""));
  EXPECT_TRUE(parse_module("\0\x01\xff junk"));
}

// Memory of 4096 bytes at address 0x1000, and nothing else.
struct Memory {
  unsigned char bytes[4096] = {};
  KernelMemory view() {
    const auto inside = [](std::uint64_t at, std::size_t size) {
      return at >= 0x1000 && at + size <= 0x2000;
    };
    return {[=, this](std::uint64_t at, void* to, std::size_t size) {
              if (!inside(at, size)) return false;
              std::memcpy(to, bytes + (at - 0x1000), size);
              return true;
            },
            [=, this](std::uint64_t at, const void* from, std::size_t size) {
              if (!inside(at, size)) return false;
              std::memcpy(bytes + (at - 0x1000), from, size);
              return true;
            }};
  }
};

TEST(Kernels, DoWhatTheySayToMemory) {
  Memory memory;
  const auto run = [&](const char* name, std::vector<ParamType> params,
                       std::vector<std::uint64_t> values) {
    const Builtin* builtin = find_builtin(name);
    EXPECT_TRUE(builtin->accepts(params));
    return builtin->run(memory.view(), params, values);
  };
  using enum ParamType;
  EXPECT_EQ(run("fill", {kPointer, kU32, kU64}, {0x1000, 7, 100}), KernelOutcome::kDone);
  EXPECT_EQ(run("add", {kPointer, kU32, kU64}, {0x1000, 3, 50}), KernelOutcome::kDone);
  EXPECT_EQ(run("scale", {kPointer, kU32, kU64}, {0x1000, 2, 1}), KernelOutcome::kDone);
  std::uint32_t words[100];
  std::memcpy(words, memory.bytes, sizeof words);
  EXPECT_EQ(words[0], 20u);
  EXPECT_EQ(words[49], 10u);
  EXPECT_EQ(words[99], 7u);
  EXPECT_EQ(run("copy", {kPointer, kPointer, kU64}, {0x1800, 0x1000, 400}), KernelOutcome::kDone);
  EXPECT_EQ(std::memcmp(memory.bytes, memory.bytes + 0x800, 400), 0);
  EXPECT_EQ(run("checksum", {kPointer, kPointer, kU64}, {0x1f00, 0x1000, 400}),
            KernelOutcome::kDone);
  std::uint64_t total = 0;
  std::memcpy(&total, memory.bytes + 0xf00, 8);
  EXPECT_EQ(total, 20u + 49 * 10 + 50 * 7);
  EXPECT_EQ(run("hash", {kPointer, kPointer, kU64}, {0x1f00, 0x1000, 0}), KernelOutcome::kDone);
  std::memcpy(&total, memory.bytes + 0xf00, 8);
  EXPECT_EQ(total, 0xcbf29ce484222325u);
}

// What a real device computes of the same bytes, by the module in src/interposer/swap_hash.cpp.
TEST(Kernels, TheFingerprintIsThatOfARealDevice) {
  Memory memory;
  using enum ParamType;
  const std::vector<ParamType> params{kPointer, kPointer, kU64};
  const auto fingerprint = [&](std::uint64_t bytes) {
    std::memset(memory.bytes + 0xf00, 0, 24);
    const std::vector<std::uint64_t> values{0x1f00, 0x1000, bytes};
    EXPECT_EQ(find_builtin("fingerprint")->run(memory.view(), params, values),
              KernelOutcome::kDone);
    std::array<std::uint64_t, 3> sums{};
    std::memcpy(sums.data(), memory.bytes + 0xf00, sizeof sums);
    return sums;
  };
  EXPECT_EQ(fingerprint(0), (std::array<std::uint64_t, 3>{}));
  const auto zeros = fingerprint(2048);
  EXPECT_EQ(zeros[2], 0u);
  for (int i = 0; i < 2048; ++i) memory.bytes[i] = static_cast<unsigned char>(i * 7 + i / 256);
  const auto before = fingerprint(2048);
  EXPECT_EQ(before, (std::array<std::uint64_t, 3>{0xa438e0d892df8de5, 0x0b74f7fa67210c97,
                                                  0xffffffffffffffff}));
  memory.bytes[2047] ^= 0x80;
  const auto after = fingerprint(2048);
  EXPECT_NE(after[0], before[0]);
  EXPECT_NE(after[1], before[1]);
  memory.bytes[2047] ^= 0x80;
  std::swap_ranges(memory.bytes, memory.bytes + 16, memory.bytes + 16);
  const auto swapped = fingerprint(2048);
  EXPECT_NE(swapped[0], before[0]);
  EXPECT_NE(swapped[1], before[1]);
}

TEST(Kernels, StopAtMemoryThatIsNotTheirs) {
  Memory memory;
  using enum ParamType;
  const std::vector<ParamType> params{kPointer, kU8, kU64};
  const auto fill = [&](std::uint64_t at, std::uint64_t count) {
    const std::vector<std::uint64_t> values{at, 1, count};
    return find_builtin("fill")->run(memory.view(), params, values);
  };
  EXPECT_EQ(fill(0, 1), KernelOutcome::kIllegalAddress);
  EXPECT_EQ(fill(0x1fff, 2), KernelOutcome::kIllegalAddress);
  EXPECT_EQ(fill(0x1000, ~std::uint64_t{0}), KernelOutcome::kIllegalAddress);
  EXPECT_EQ(fill(0x1fff, 1), KernelOutcome::kDone);
}

}  // namespace
}  // namespace nvshare::softgpu
