#include <nlohmann/json.hpp>

#include "softgpu/tenant.h"

// softgpu-smi as a person or a script runs it, with a process on the card.
namespace nvshare::softgpu {
namespace {

struct Output {
  std::string text;  // what it wrote, errors among it
  int status = -1;
};

Output smi(const std::string& arguments) {
  Output output;
  FILE* pipe = popen((NVSHARE_SMI " " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  while (const std::size_t size = fread(buffer, 1, sizeof buffer, pipe)) {
    output.text.append(buffer, size);
  }
  const int status = pclose(pipe);
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Smi : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("NVSHARE_SOFTGPU_CARD", ("smi-test-" + std::to_string(getpid())).c_str(), 1);
    setenv("NVSHARE_SOFTGPU_MEMORY", "1Gi", 1);
    setenv("NVSHARE_SOFTGPU_NAME", "Smi Test", 1);
    unsetenv("NVSHARE_SOFTGPU_NVML_UNAVAILABLE");
    unsetenv("NVSHARE_SOFTGPU_LOSE_DEVICE");
  }
};

TEST_F(Smi, ShowsACardThatNobodyUses) {
  const Output output = smi("");
  EXPECT_EQ(output.status, 0) << output.text;
  EXPECT_TRUE(has(output.text, "Smi Test")) << output.text;
  EXPECT_TRUE(has(output.text, " 0MiB /   1024MiB |")) << output.text;
  EXPECT_TRUE(has(output.text, "No running processes found")) << output.text;
  EXPECT_TRUE(has(smi("-L").text, "GPU 0: Smi Test (UUID: GPU-"));
}

TEST_F(Smi, ShowsAProcessAndItsMemory) {
  Tenant tenant;
  ASSERT_EQ(tenant.started(), "0");
  ASSERT_EQ(tenant.tell("alloc 268435456"), "0");
  const Output table = smi("");
  EXPECT_EQ(table.status, 0);
  EXPECT_TRUE(has(table.text, " " + std::to_string(tenant.pid()) + " ")) << table.text;
  EXPECT_TRUE(has(table.text, "softgpu_tenant")) << table.text;
  EXPECT_EQ(smi("--query-compute-apps=pid,process_name,used_memory --format=csv,noheader").text,
            std::to_string(tenant.pid()) + ", " NVSHARE_TENANT ", 256 MiB\n");
  EXPECT_EQ(smi("--query-gpu=memory.used,memory.total --format=csv,nounits").text,
            "memory.used [MiB], memory.total [MiB]\n256, 1024\n");
  const auto json = nlohmann::json::parse(smi("--json").text);
  EXPECT_EQ(json["devices"][0]["memory"]["used_bytes"], 268435456);
  EXPECT_EQ(json["devices"][0]["processes"][0]["pid"], tenant.pid());
  tenant.kill_now();
  EXPECT_EQ(smi("--query-compute-apps=pid --format=csv").text, "pid\n");
}

TEST_F(Smi, LoopsUntilItIsStopped) {
  FILE* pipe = popen(NVSHARE_SMI " -l 0.1 --query-gpu=name --format=csv", "r");
  ASSERT_NE(pipe, nullptr);
  char line[64];
  for (const char* expected : {"name\n", "Smi Test\n", "Smi Test\n", "Smi Test\n"}) {
    ASSERT_NE(fgets(line, sizeof line, pipe), nullptr);
    EXPECT_STREQ(line, expected);
  }
  pclose(pipe);  // it notices that nobody reads any more
}

TEST_F(Smi, BadOptionsAreOneLineAndTwo) {
  for (const char* arguments : {"--bogus", "--query-gpu=bogus --format=csv", "-l never"}) {
    const Output output = smi(arguments);
    EXPECT_EQ(output.status, 2) << arguments;
    EXPECT_EQ(output.text.find('\n'), output.text.size() - 1) << output.text;
  }
  EXPECT_EQ(smi("--help").status, 0);
}

TEST_F(Smi, SaysWhatNvmlSaysWhenItCannotGoOn) {
  setenv("NVSHARE_SOFTGPU_NVML_UNAVAILABLE", "true", 1);
  const Output output = smi("");
  EXPECT_EQ(output.text, "softgpu-smi: NVML: Driver Not Loaded\n");
  EXPECT_EQ(output.status, 9);
  unsetenv("NVSHARE_SOFTGPU_NVML_UNAVAILABLE");
  EXPECT_EQ(smi("-L -i 7").status, 6);
}

TEST_F(Smi, ALostDeviceIsShownAsLost) {
  setenv("NVSHARE_SOFTGPU_LOSE_DEVICE", "1", 1);
  Tenant tenant;
  ASSERT_EQ(tenant.started(), "0");
  tenant.tell("spin 1");
  const Output output = smi("");
  EXPECT_EQ(output.status, 15) << output.text;
  EXPECT_TRUE(has(output.text, "GPU is lost")) << output.text;
}

}  // namespace
}  // namespace nvshare::softgpu
