#include "softgpu/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>

namespace nvshare::softgpu {
namespace {

Result<Config> load(std::map<std::string, std::string> variables) {
  return load_config([variables](const std::string& name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(SoftgpuConfig, HasDefaults) {
  const auto config = load({});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->memory, gib(80));
  EXPECT_EQ(config->slice, Duration{2ms});
  EXPECT_EQ(config->card, "default");
}

TEST(SoftgpuConfig, TakesEverySettingFromTheEnvironment) {
  for (const Setting& setting : settings()) {
    EXPECT_FALSE(load({{environment_name(setting.key), std::string(5000, '!')}})) << setting.key;
  }
  const auto config = load({{"NVSHARE_SOFTGPU_MEMORY", "4Gi"}, {"NVSHARE_SOFTGPU_COUNT", "2"}});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->memory, gib(4));
  EXPECT_EQ(config->count, 2);
}

TEST(SoftgpuConfig, ReportsAllThatIsWrongAtOnce) {
  const auto config = load({{"NVSHARE_SOFTGPU_MEMORY", "much"}, {"NVSHARE_SOFTGPU_COUNT", "0"}});
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().message,
            "NVSHARE_SOFTGPU_COUNT: '0' is not a whole number from 1 to 8; "
            "NVSHARE_SOFTGPU_MEMORY: 'much' is not a size (examples: 4Gi, 512Mi, 2G)");
}

#ifdef NVSHARE_HAVE_TOML
TEST(SoftgpuConfig, ReadsAFile) {
  const auto config = parse_config(
      "memory = \"2Gi\"\nfail_copy = 3\nhang_nvml = 4\nnvml_unavailable = true\n", "f");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->memory, gib(2));
  EXPECT_EQ(config->fail_copy, 3);
  EXPECT_EQ(config->hang_nvml, 4);
  EXPECT_TRUE(config->nvml_unavailable);
}

TEST(SoftgpuConfig, SaysWhereAFileIsWrong) {
  EXPECT_EQ(parse_config("memory = \"2Gi\"\nsliec = 3\n", "f").error().message,
            "f:2:1: sliec: unknown key; did you mean 'slice'?");
  EXPECT_EQ(parse_config("count = 9\n", "f").error().message,
            "f:1:9: count: '9' is not a whole number from 1 to 8");
  EXPECT_EQ(
      parse_config("count = 9\nmemory = 1.5\n", "f").error().message,
      "f:1:9: count: '9' is not a whole number from 1 to 8; "
      "f:2:10: memory: is a number with a fraction, not a text, a whole number, true or false");
  EXPECT_FALSE(parse_config("count = [1]\n", "f"));
  EXPECT_FALSE(parse_config("count =", "f"));
}
#endif

TEST(SoftgpuConfig, EverySettingGivesBackWhatItTakes) {
  const Config defaults;
  for (const Setting& setting : settings()) {
    Config other;
    EXPECT_TRUE(setting.value.set(other, setting.value.get(defaults))) << setting.key;
    EXPECT_EQ(setting.value.get(other), setting.value.get(defaults)) << setting.key;
  }
  Config config;
  const Setting* memory = find_setting("memory");
  ASSERT_NE(memory, nullptr);
  ASSERT_TRUE(memory->value.set(config, "1073741825"));
  EXPECT_EQ(memory->value.get(config), "1073741825");
  EXPECT_EQ(find_setting("speed"), nullptr);
}

TEST(SoftgpuConfig, ThePageShowsEverySetting) {
  std::ifstream file(NVSHARE_SOFTGPU_PAGE);
  ASSERT_TRUE(file.good());
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const std::string table = page.substr(page.find("\n| setting |"));
  for (const Setting& setting : settings()) {
    EXPECT_NE(table.find("`" + std::string(setting.key) + "`"), std::string::npos) << setting.key;
  }
}

TEST(SoftgpuConfig, ACardHasAName) {
  EXPECT_TRUE(load({{"NVSHARE_SOFTGPU_CARD", "a.b_c-1"}}));
  EXPECT_FALSE(load({{"NVSHARE_SOFTGPU_CARD", "a/b"}}));
}

TEST(SoftgpuConfig, AFileThatIsNotThereIsAnError) {
  EXPECT_FALSE(load({{"NVSHARE_SOFTGPU_CONFIG", "/nowhere/at/all.toml"}}));
}

}  // namespace
}  // namespace nvshare::softgpu
