#pragma once

// Which lock guards what, for clang to check (-Wthread-safety). Other compilers see nothing.
#ifdef __clang__
#define NVSHARE_ATTRIBUTE(x) __attribute__((x))
#else
#define NVSHARE_ATTRIBUTE(x)
#endif

#define CAPABILITY(name) NVSHARE_ATTRIBUTE(capability(name))
#define SCOPED_CAPABILITY NVSHARE_ATTRIBUTE(scoped_lockable)
// A member is read and written with the lock held.
#define GUARDED_BY(lock) NVSHARE_ATTRIBUTE(guarded_by(lock))
// A function is called with the lock held, or without it.
#define REQUIRES(...) NVSHARE_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) NVSHARE_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) NVSHARE_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) NVSHARE_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) NVSHARE_ATTRIBUTE(release_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(lock) NVSHARE_ATTRIBUTE(assert_capability(lock))
#define NO_THREAD_SAFETY_ANALYSIS NVSHARE_ATTRIBUTE(no_thread_safety_analysis)
