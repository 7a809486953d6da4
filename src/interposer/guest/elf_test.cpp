#include "interposer/guest/elf.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstring>

namespace nvshare::interposer::guest {
namespace {

int in_the_program = 0;

TEST(Elf, FindsTheObjectOfAnAddress) {
  Object object;
  ASSERT_TRUE(find_object(&in_the_program, object));
  EXPECT_STREQ(object.path, "");
  ASSERT_TRUE(find_object(reinterpret_cast<void*>(&std::strerror), object));
  ASSERT_NE(object.soname, nullptr);
  EXPECT_FALSE(object.contains(&in_the_program));
  int on_the_stack = 0;
  EXPECT_FALSE(find_object(&on_the_stack, object));
}

TEST(Elf, FindsWhatTheLoaderFinds) {
  Object libc;
  ASSERT_TRUE(find_object_named("libc.so.6", libc));
  void* handle = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(handle, nullptr);
  // Of several versions, the default one (glob, regexec, fmemopen have more than one).
  for (const char* symbol : {"getppid", "dl_iterate_phdr", "glob", "regexec", "fmemopen", "abort",
                             "pthread_cond_wait"}) {
    EXPECT_EQ(libc.function(symbol), dlsym(handle, symbol)) << symbol;
  }
  EXPECT_EQ(libc.function("no_such_function"), nullptr);
  EXPECT_EQ(libc.function(""), nullptr);
  EXPECT_EQ(libc.function("environ"), nullptr) << "not a function";
  dlclose(handle);
}

TEST(Elf, FindsEveryExportedFunctionOfALibrary) {
  Object own;
  ASSERT_TRUE(find_object_named("libstdc++.so.6", own));
  void* handle = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(handle, nullptr);
  for (const char* symbol : {"_ZSt9terminatev", "__cxa_throw", "_ZdlPv", "_Znwm"}) {
    EXPECT_EQ(own.function(symbol), dlsym(handle, symbol)) << symbol;
  }
  dlclose(handle);
}

TEST(Elf, KnowsWhereTheCLibraryKeepsThings) {
  EXPECT_NE(libc_function("dlsym"), nullptr);
  EXPECT_NE(libc_function("pthread_create"), nullptr);
  EXPECT_EQ(libc_function("no_such_function"), nullptr);
}

TEST(Elf, VisitsUntilTold) {
  int visited = 0;
  EXPECT_TRUE(visit_objects([&](const Object&) { return ++visited == 2; }));
  EXPECT_EQ(visited, 2);
  EXPECT_FALSE(visit_objects([](const Object&) { return false; }));
}

}  // namespace
}  // namespace nvshare::interposer::guest
