#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

// Starts itself again under the library, once; see preloaded.h.
int main(int count, char** words) {
  bool only_lists = false;
  for (int i = 1; i < count; ++i) {
    only_lists = only_lists || std::strstr(words[i], "gtest_list_tests") != nullptr;
  }
  const char* mark = "NVSHARE_TEST_PRELOADED";
  if (only_lists || std::getenv(mark) != nullptr) {
    ::unsetenv("LD_PRELOAD");
    ::testing::InitGoogleTest(&count, words);
    const int result = RUN_ALL_TESTS();
    const char* folder = std::getenv("NVSHARE_RUN_DIR");
    std::error_code failed;
    if (!only_lists && folder != nullptr) std::filesystem::remove_all(folder, failed);
    // Without the ends of static objects: threads of the library are still there.
    std::fflush(nullptr);
    ::_exit(result);
  }
  std::string folder = "/tmp/nvshare-test-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  ::setenv(mark, "1", 1);
  ::setenv("NVSHARE_RUN_DIR", folder.c_str(), 1);
  ::setenv("NVSHARE_SOFTGPU_CARD", folder.substr(folder.rfind('/') + 1).c_str(), 1);
  ::setenv("NVSHARE_SOFTGPU_COUNT", "2", 1);
  ::setenv("NVSHARE_SOFTGPU_MEMORY", "1Gi", 1);
  ::setenv("LD_LIBRARY_PATH", NVSHARE_SOFTGPU_FOLDER, 1);
  ::setenv("LD_PRELOAD", NVSHARE_LIBRARY, 1);
  ::execv("/proc/self/exe", words);
  return 1;
}
