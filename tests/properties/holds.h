#pragma once

// Property tests, with rapidcheck.
//
// A run that fails prints the shortest input that still fails, its story, and a line such as
//   RC_PARAMS="reproduce=..."
// With that in the environment the same test plays exactly that case again. The seed is fixed, so
// that a test says the same each time it is run; other inputs are tried with
//   RC_PARAMS="seed=12345" or RC_PARAMS="seed=12345 max_success=100000"
// NVSHARE_PROPERTY_PERCENT=20 plays a fifth of the runs; so do builds with a sanitizer.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace nvshare::properties {

inline int runs_of(int runs) {
  const char* percent = std::getenv("NVSHARE_PROPERTY_PERCENT");
  return std::max(1,
                  runs * std::atoi(percent != nullptr ? percent : NVSHARE_PROPERTY_PERCENT) / 100);
}

inline std::uint64_t seed_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// The property returns normally when it holds, and fails by RC_ASSERT or RC_FAIL.
template <typename Property>
void holds(int runs, Property&& property) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  rc::detail::TestMetadata metadata;
  metadata.id = std::string(test->test_suite_name()) + "/" + test->name();
  metadata.description = test->name();
  const char* given = std::getenv("RC_PARAMS");
  const std::string settings = given != nullptr ? given : "";
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  // Fixed, so that a test says the same each time, and another for each test.
  if (settings.find("seed=") == std::string::npos) params.seed = seed_of(metadata.id);
  if (settings.find("max_success=") == std::string::npos) params.maxSuccess = runs_of(runs);
  const auto result = rc::detail::checkTestable(std::forward<Property>(property), metadata, params);
  std::printf("%s: %d runs, seed=%llu\n", metadata.id.c_str(), params.maxSuccess,
              static_cast<unsigned long long>(params.seed));
  if (result.template is<rc::detail::SuccessResult>()) return;
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  ADD_FAILURE() << text.str() << "\nseed=" << params.seed;
}

// Bytes for Dice: up to `most` of them.
inline rc::Gen<std::vector<std::uint8_t>> bytes(int most) {
  return rc::gen::resize(most, rc::gen::arbitrary<std::vector<std::uint8_t>>());
}

}  // namespace nvshare::properties
