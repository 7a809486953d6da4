#include "daemon/host/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace nvshare::daemon {
namespace {

// A machine of its own, as far as its memory is told in files.
struct FakeMachine {
  FakeMachine() : root(testing::TempDir() + "nvshare-arena-" + std::to_string(getpid())) {
    write("/proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:    8388608 kB\n");
  }
  ~FakeMachine() { std::filesystem::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  std::string root;
};

TEST(HostMemory, LeavesSomeForEveryoneElse) {
  const FakeMachine machine;
  const HostMemory host(machine.root);
  EXPECT_EQ(host.available(), gib(8));
  EXPECT_LT(host.left().bytes, gib(8) - mib(256));
  EXPECT_GT(host.left().bytes, gib(7));
  EXPECT_EQ(HostMemory("/nowhere").left().bytes, Bytes{0});
}

TEST(HostMemory, AControlGroupsLimitHolds) {
  const FakeMachine machine;
  machine.write("/proc/self/cgroup", "0::/a/b\n");
  machine.write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  machine.write("/sys/fs/cgroup/a/b/memory.current", "1000\n");
  const HostMemory host(machine.root);
  const Bytes before = host.left().bytes;
  EXPECT_FALSE(host.left().by_group);
  machine.write("/sys/fs/cgroup/a/memory.max", std::to_string(gib(3).count));
  machine.write("/sys/fs/cgroup/a/memory.current", std::to_string(gib(2).count));
  EXPECT_EQ(host.left().bytes, gib(1) - mib(256)) << "of the group above";
  EXPECT_TRUE(host.left().by_group);
  machine.write("/sys/fs/cgroup/a/memory.stat",
                "anon 7\ninactive_file " + std::to_string(gib(1).count) + "\n");
  EXPECT_EQ(host.left().bytes, gib(2) - mib(256));
  EXPECT_LT(host.left().bytes, before);
}

// A machine with control groups of version 1.
struct MachineOfVersion1 : FakeMachine {
  void limit(const std::string& group, const std::string& most, Bytes used,
             Bytes files = {}) const {
    const std::string folder = "/sys/fs/cgroup/memory" + group;
    write(folder + "/memory.limit_in_bytes", most + "\n");
    write(folder + "/memory.usage_in_bytes", std::to_string(used.count) + "\n");
    write(folder + "/memory.stat",
          "inactive_file 7\ntotal_inactive_file " + std::to_string(files.count) + "\n");
  }
  void limit(const std::string& group, Bytes most, Bytes used, Bytes files = {}) const {
    limit(group, std::to_string(most.count), used, files);
  }
  // As the kernel writes it.
  static constexpr const char* kNone = "9223372036854771712";
};

TEST(HostMemory, AControlGroupsLimitOfVersion1Holds) {
  const MachineOfVersion1 machine;
  machine.write("/proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/a/b\n1:name=systemd:/a/b\n");
  machine.limit("/a/b", MachineOfVersion1::kNone, gib(2));
  machine.limit("", MachineOfVersion1::kNone, gib(3));
  const HostMemory host(machine.root);
  const Bytes before = host.left().bytes;
  EXPECT_GT(before, gib(7));
  EXPECT_FALSE(host.left().by_group);
  machine.limit("/a", gib(3), gib(2));
  EXPECT_EQ(host.left().bytes, gib(1) - mib(256)) << "of the group above";
  EXPECT_TRUE(host.left().by_group);
  machine.limit("/a", gib(3), gib(2), gib(1));
  EXPECT_EQ(host.left().bytes, gib(2) - mib(256)) << "files can be dropped";
  machine.limit("/a/b", gib(1), mib(512));
  EXPECT_EQ(host.left().bytes, mib(512) - mib(256)) << "the tightest";
  machine.limit("/x", mib(1), mib(1));
  EXPECT_EQ(host.left().bytes, mib(512) - mib(256)) << "another controller's group";
}

TEST(HostMemory, AContainerSeesItsOwnGroupAsTheTopOne) {
  const MachineOfVersion1 machine;
  machine.write("/proc/self/cgroup", "5:cpuset,memory:/docker/0123\n");
  machine.limit("", gib(2), gib(1));
  EXPECT_EQ(HostMemory(machine.root).left().bytes, gib(1) - mib(256));
}

// Version 2 beside version 1: either can have the memory controller.
TEST(HostMemory, GroupsOfBothVersionsAreLookedAt) {
  const MachineOfVersion1 machine;
  machine.write("/proc/self/cgroup", "5:memory:/a\n0::/b\n");
  const HostMemory host(machine.root);
  EXPECT_FALSE(host.left().by_group);
  machine.limit("/a", gib(3), gib(1));
  EXPECT_EQ(host.left().bytes, gib(2) - mib(256));
  machine.write("/sys/fs/cgroup/unified/b/memory.max", std::to_string(gib(1).count));
  machine.write("/sys/fs/cgroup/unified/b/memory.current", "0\n");
  EXPECT_EQ(host.left().bytes, gib(1) - mib(256));
}

TEST(HostMemory, OfAPieceIsAllThereAndCannotShrink) {
  const auto memory = make_host_memory(-1, mib(1));
  ASSERT_TRUE(memory) << memory.error().message;
  struct stat about {};
  ASSERT_EQ(fstat(memory->own.get(), &about), 0);
  EXPECT_EQ(about.st_size, mib(1).count);
  EXPECT_GE(about.st_blocks * 512, mib(1).count) << "pages that are there";
  EXPECT_LT(ftruncate(memory->theirs.get(), 0), 0);
}

TEST(HostMemory, IsMadeOfHugePagesWhereThatIsAllowed) {
  const UniqueFd mount = mount_huge_memory();
  if (!mount) GTEST_SKIP() << "may not mount";
  const auto memory = make_host_memory(mount.get(), mib(64));
  ASSERT_TRUE(memory) << memory.error().message;
  struct stat about {};
  ASSERT_EQ(fstat(memory->own.get(), &about), 0);
  EXPECT_EQ(about.st_size, mib(64).count);
  EXPECT_GE(about.st_blocks * 512, mib(64).count) << "pages that are there";
  EXPECT_EQ(about.st_nlink, 0u);
  if (std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").good()) {
    EXPECT_EQ(about.st_blksize, mib(2).count) << "the size of its pages";
  }
  const std::string path = "/proc/self/fd/" + std::to_string(memory->theirs.get());
  EXPECT_LT(linkat(AT_FDCWD, path.c_str(), mount.get(), "named", AT_SYMLINK_FOLLOW), 0);
}

// A piece that was handed over is held as long as anybody has it open or mapped.
void expect_held_until_gone(int mount) {
  auto memory = make_host_memory(mount, mib(4));
  ASSERT_TRUE(memory) << memory.error().message;
  const int own = memory->own.get();
  EXPECT_EQ(still_held(own), mib(4)) << "open";
  void* at =
      mmap(nullptr, mib(4).count, PROT_READ | PROT_WRITE, MAP_SHARED, memory->theirs.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  memory->theirs.reset();
  EXPECT_EQ(still_held(own), mib(4)) << "mapped";
  ASSERT_EQ(madvise(at, mib(2).count, MADV_REMOVE), 0);
  EXPECT_EQ(still_held(own), mib(2)) << "given back in part";
  const std::string path = "/proc/self/fd/" + std::to_string(own);
  UniqueFd other(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  munmap(at, mib(4).count);
  EXPECT_EQ(still_held(own), mib(2)) << "open to read";
  other.reset();
  EXPECT_EQ(still_held(own), Bytes{});
}

TEST(HostMemory, IsHeldUntilNobodyHasItAnyMore) {
  expect_held_until_gone(-1);
}

TEST(HostMemory, SoItIsOnAMountOfItsOwn) {
  const UniqueFd mount = mount_huge_memory();
  if (!mount) GTEST_SKIP() << "may not mount";
  expect_held_until_gone(mount.get());
}

std::vector<Arena::Piece> wait_for(Arena& arena, std::size_t count) {
  std::vector<Arena::Piece> all;
  while (all.size() < count) {
    pollfd waiting{arena.ready(), POLLIN, 0};
    if (poll(&waiting, 1, 10000) <= 0) return all;
    for (Arena::Piece& piece : arena.take()) all.push_back(std::move(piece));
  }
  return all;
}

TEST(Arena, MakesWhatIsAskedForInATurnOfItsOwn) {
  const FakeMachine machine;
  auto arena = Arena::start({0, gib(4)}, HostMemory(machine.root));
  ASSERT_TRUE(arena);
  EXPECT_EQ((*arena)->most(), gib(4)) << "its limit";
  EXPECT_EQ((*arena)->limited_by(), "arena_limit");
  (*arena)->make(ClientId{7}, mib(2));
  (*arena)->make(ClientId{8}, mib(1));
  auto pieces = wait_for(**arena, 2);
  ASSERT_EQ(pieces.size(), 2u);
  if (pieces[0].client == ClientId{8})
    std::swap(pieces[0], pieces[1]);  // several threads make them
  EXPECT_EQ(pieces[0].client, ClientId{7});
  EXPECT_EQ(pieces[0].bytes, mib(2));
  EXPECT_TRUE(pieces[0].memory);
}

// Whatever a process says: its pieces count until it has really given them up.
TEST(Arena, KnowsWhatProcessesStillHave) {
  const FakeMachine machine;
  auto arena = Arena::start({0, gib(4)}, HostMemory(machine.root));
  ASSERT_TRUE(arena);
  (*arena)->make(ClientId{7}, mib(2));
  (*arena)->make(ClientId{7}, mib(2));
  auto pieces = wait_for(**arena, 2);
  ASSERT_EQ(pieces.size(), 2u);
  std::vector<UniqueFd> theirs;
  for (Arena::Piece& piece : pieces) {
    ASSERT_TRUE(piece.memory);
    theirs.push_back(std::move(piece.memory->theirs));
    (*arena)->keep(4711, std::move(piece));
  }
  const std::map<int, Bytes> both{{4711, mib(4)}};
  EXPECT_EQ((*arena)->held(), both);
  (*arena)->look();
  EXPECT_EQ((*arena)->held(), both);
  theirs.pop_back();
  (*arena)->look();
  EXPECT_EQ((*arena)->held(), (std::map<int, Bytes>{{4711, mib(2)}}));
  theirs.clear();
  (*arena)->look();
  EXPECT_TRUE((*arena)->held().empty());
}

// Clients that come from a scheduler before this one have some of it already.
TEST(Arena, APartOfTheMachineIsOfAllThatCanBeArena) {
  const FakeMachine machine;
  const auto available = [&](Bytes bytes) {
    machine.write("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: " +
                                       std::to_string(bytes.count / 1024) + " kB\n");
  };
  available(gib(4));
  auto arena = Arena::start({50, {}}, HostMemory(machine.root));
  ASSERT_TRUE(arena);
  const auto half = [&] { return ((*arena)->limit().count + 512) >> 10; };  // in KiB
  const auto kib_of = [](Bytes bytes) { return bytes.count >> 10; };
  EXPECT_EQ(half(), kib_of(gib(2)));
  (*arena)->refresh(gib(3), gib(3));
  EXPECT_EQ(half(), kib_of(gib(7)) / 2) << "with what was brought along";
  (*arena)->refresh({}, {});
  EXPECT_EQ(half(), kib_of(gib(2))) << "that was only said";
  available(gib(7));
  (*arena)->refresh({}, {});
  EXPECT_EQ(half(), kib_of(gib(7)) / 2) << "they are gone, and it was true";
  (*arena)->refresh({}, {});
  available(gib(1));
  (*arena)->refresh(gib(3), {});
  EXPECT_EQ(half(), kib_of(gib(7)) / 2) << "promised";
  available(gib(9));
  (*arena)->refresh(gib(3), {});  // some of it is free already
  available(gib(2));
  (*arena)->refresh({}, {});
  EXPECT_EQ(half(), kib_of(gib(7)) / 2) << "seen twice, once";
}

TEST(Arena, IsNeverMoreThanTheMachineHas) {
  const FakeMachine machine;
  auto arena = Arena::start({0, gib(1024)}, HostMemory(machine.root));
  ASSERT_TRUE(arena);
  const Bytes at_first = (*arena)->most();
  EXPECT_LT(at_first, gib(8));
  EXPECT_EQ((*arena)->limited_by(), "machine");
  (*arena)->refresh(gib(2));
  EXPECT_EQ((*arena)->most(), at_first + gib(2)) << "with what there is of it";
  machine.write("/proc/self/cgroup", "0::/a\n");
  machine.write("/sys/fs/cgroup/a/memory.max", std::to_string(gib(1).count));
  machine.write("/sys/fs/cgroup/a/memory.current", "0");
  (*arena)->refresh({});
  EXPECT_EQ((*arena)->most(), gib(1) - mib(256));
  EXPECT_EQ((*arena)->limited_by(), "cgroup");
  machine.write("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1024 kB\n");
  (*arena)->make(ClientId{7}, mib(1));
  const auto pieces = wait_for(**arena, 1);
  ASSERT_EQ(pieces.size(), 1u);
  ASSERT_FALSE(pieces[0].memory) << "somebody else has taken it meanwhile";
  EXPECT_NE(pieces[0].memory.error().message.find("the machine has 0B left"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::daemon
