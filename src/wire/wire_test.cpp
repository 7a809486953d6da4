#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "wire/channel.h"
#include "wire/page.h"

namespace nvshare::wire {
namespace {

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
  UniqueFd a;
  UniqueFd b;
};

struct Folder {
  Folder() {
    char name[] = "/tmp/nvshare-wire-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

TEST(Wire, AMessageArrivesAsItWasSent) {
  Pair pair;
  auto sent = make<Grant>();
  sent.grant = 7;
  sent.budget = 5'000'000;
  ASSERT_EQ(send(pair.a.get(), &sent.header, true), 0);
  alignas(8) char buffer[kMaxMessage];
  const int length = receive(pair.b.get(), buffer, true);
  const Grant* got = as<Grant>(look_at(buffer, static_cast<size_t>(length)));
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->grant, 7u);
  EXPECT_EQ(got->budget, 5'000'000u);
  EXPECT_EQ(as<Drop>(look_at(buffer, static_cast<size_t>(length))), nullptr);
}

TEST(Wire, ADescriptorTravels) {
  Pair pair;
  Pair other;
  const auto welcome = make<Welcome>();
  ASSERT_EQ(send(pair.a.get(), &welcome.header, true, other.a.get()), 0);
  alignas(8) char buffer[kMaxMessage];
  int fd = -1;
  ASSERT_EQ(receive(pair.b.get(), buffer, true, &fd), static_cast<int>(sizeof(Welcome)));
  ASSERT_GE(fd, 0);
  UniqueFd received(fd);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  const auto drop = make<Drop>();
  ASSERT_EQ(send(received.get(), &drop.header, true), 0);
  EXPECT_EQ(receive(other.b.get(), buffer, true), static_cast<int>(sizeof(Drop)));
}

// Descriptors that nobody asked for do not pile up.
TEST(Wire, AnUnwantedDescriptorIsClosed) {
  Pair pair;
  Pair other;
  const auto hello = make<Hello>();
  ASSERT_EQ(send(pair.a.get(), &hello.header, true, other.a.get()), 0);
  other.a.reset();
  alignas(8) char buffer[kMaxMessage];
  ASSERT_GT(receive(pair.b.get(), buffer, true), 0);
  EXPECT_EQ(receive(other.b.get(), buffer, true), 0) << "the other end is still open somewhere";
}

long open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// A message with `count` descriptors: more than send() would ever put in.
void send_with(int socket, int count, int descriptor) {
  auto hello = make<Hello>();
  iovec part{&hello, sizeof hello};
  std::vector<int> descriptors(static_cast<size_t>(count), descriptor);
  const size_t bytes = descriptors.size() * sizeof(int);
  std::vector<cmsghdr> control(CMSG_SPACE(bytes) / sizeof(cmsghdr) + 1);
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  packet.msg_control = control.data();
  packet.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* head = CMSG_FIRSTHDR(&packet);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(head), descriptors.data(), bytes);
  ASSERT_EQ(sendmsg(socket, &packet, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof hello));
}

// 253 is as many as the kernel lets travel at once.
TEST(Wire, OfManyDescriptorsOneArrivesAndNoneStays) {
  for (const int count : {1, 2, 253}) {
    Pair pair;
    Pair other;
    send_with(pair.a.get(), count, other.a.get());
    const long before = open_descriptors();
    alignas(8) char buffer[kMaxMessage];
    int fd = -1;
    ASSERT_EQ(receive(pair.b.get(), buffer, true, &fd), static_cast<int>(sizeof(Hello)));
    ASSERT_GE(fd, 0) << count;
    EXPECT_EQ(open_descriptors(), before + 1) << count;
    close(fd);
  }
}

TEST(Wire, WhoWantsNoDescriptorGetsNone) {
  for (const int count : {1, 2, 253}) {
    Pair pair;
    Pair other;
    send_with(pair.a.get(), count, other.a.get());
    other.a.reset();
    const long before = open_descriptors();
    alignas(8) char buffer[kMaxMessage];
    ASSERT_EQ(receive(pair.b.get(), buffer, true), static_cast<int>(sizeof(Hello)));
    EXPECT_EQ(open_descriptors(), before) << count;
    EXPECT_EQ(receive(other.b.get(), buffer, true), 0) << "still open somewhere";
  }
}

TEST(Wire, LiesAboutTheLengthAreFound) {
  auto message = make<Hello>();
  const auto length = static_cast<size_t>(message.header.size);
  EXPECT_NE(look_at(&message, length), nullptr);
  EXPECT_EQ(look_at(&message, length - 1), nullptr);
  EXPECT_EQ(look_at(&message, 0), nullptr);
  EXPECT_EQ(look_at(nullptr, length), nullptr);
  message.header.size = sizeof(Header);
  EXPECT_EQ(look_at(&message, sizeof(Header)), nullptr) << "too short for its type";
}

TEST(Wire, ANewerMinorVersionMayAppend) {
  alignas(8) char buffer[kMaxMessage] = {};
  const auto grant = make<Grant>();
  memcpy(buffer, &grant, sizeof grant);
  auto* header = reinterpret_cast<Header*>(buffer);
  header->size = sizeof(Grant) + 16;
  EXPECT_NE(as<Grant>(look_at(buffer, sizeof(Grant) + 16)), nullptr);
  header->type = 999;
  EXPECT_NE(look_at(buffer, sizeof(Grant) + 16), nullptr) << "an unknown type is passed over";
  EXPECT_EQ(size_of(Type{999}), 0u);
}

// A `nvshare run` before minor version 6 says nothing of GPUs, whatever lies behind its message.
TEST(Wire, AShorterRunBeginOfAnOlderRunIsWhole) {
  alignas(8) char buffer[kMaxMessage];
  memset(buffer, 0x5a, sizeof buffer);
  auto sent = make<RunBegin>();
  sent.header.size = RunBegin::kLeast;
  sent.flags = kOversubscribeSelf;
  memcpy(buffer, &sent, RunBegin::kLeast);
  const auto* got = as<RunBegin>(look_at(buffer, RunBegin::kLeast));
  ASSERT_NE(got, nullptr);
  const RunBegin begin = whole(*got);
  EXPECT_EQ(begin.flags, kOversubscribeSelf);
  EXPECT_EQ(begin.choice, GpuChoice::None);
  EXPECT_EQ(begin.gpus_wanted, 0u);
  EXPECT_EQ(begin.gpu_count, 0u);
  EXPECT_EQ(begin.gpus[0][0], 0u);
  auto* header = reinterpret_cast<Header*>(buffer);
  header->size = RunBegin::kLeast - 1;
  EXPECT_EQ(look_at(buffer, RunBegin::kLeast - 1), nullptr);
}

TEST(Wire, AShorterWelcomeOfAnOlderSchedulerPlacesNothing) {
  alignas(8) char buffer[kMaxMessage];
  memset(buffer, 0x5a, sizeof buffer);
  auto sent = make<Welcome>();
  sent.header.size = Welcome::kLeast;
  sent.client = 7;
  memcpy(buffer, &sent, Welcome::kLeast);
  const auto* got = as<Welcome>(look_at(buffer, Welcome::kLeast));
  ASSERT_NE(got, nullptr);
  const Welcome welcome = whole(*got);
  EXPECT_EQ(welcome.client, 7u);
  EXPECT_EQ(welcome.gpu_count, 0u);
  EXPECT_EQ(text_length(welcome.placement, sizeof welcome.placement), 0u);
}

// A newer end may append behind these fields, too.
TEST(Wire, ALongerMessageIsCopiedAsFarAsItIsKnown) {
  alignas(8) char buffer[kMaxMessage] = {};
  auto sent = make<Welcome>();
  sent.gpu_count = 2;
  sent.header.size = sizeof(Welcome) + 16;
  memcpy(buffer, &sent, sizeof sent);
  const Welcome welcome = whole(*as<Welcome>(look_at(buffer, sizeof(Welcome) + 16)));
  EXPECT_EQ(welcome.gpu_count, 2u);
  EXPECT_EQ(welcome.header.size, sizeof(Welcome));
}

TEST(Wire, APacketThatIsTooLongIsRefused) {
  Pair pair;
  const std::string big(kMaxMessage + 1, 'x');
  ASSERT_GT(::send(pair.a.get(), big.data(), big.size(), 0), 0);
  alignas(8) char buffer[kMaxMessage];
  EXPECT_EQ(receive(pair.b.get(), buffer, true), -EMSGSIZE);
}

TEST(Wire, NobodyThereIsAnErrorAndNoSignal) {
  Pair pair;
  pair.b.reset();
  const auto drop = make<Drop>();
  EXPECT_EQ(send(pair.a.get(), &drop.header, false), -EPIPE);
  alignas(8) char buffer[kMaxMessage];
  EXPECT_EQ(receive(pair.a.get(), buffer, false), 0);
}

TEST(Wire, WhoDoesNotReadDoesNotBlockTheOther) {
  Pair pair;
  const auto drop = make<Drop>();
  int result = 0;
  for (int i = 0; i < 100'000 && result == 0; ++i) {
    result = send(pair.a.get(), &drop.header, false);
  }
  EXPECT_EQ(result, -EAGAIN);
}

TEST(Wire, ASocketFileIsTakenOverOnlyFromTheDead) {
  Folder folder;
  const std::string path = folder.path + "/s";
  {
    UniqueFd first(listen_at(path.c_str(), 0600));
    ASSERT_GE(first.get(), 0);
    EXPECT_EQ(listen_at(path.c_str(), 0600), -EADDRINUSE);
    UniqueFd client(connect_to(path.c_str()));
    EXPECT_GE(client.get(), 0);
  }
  EXPECT_EQ(connect_to(path.c_str()), -ECONNREFUSED);
  UniqueFd second(listen_at(path.c_str(), 0600));
  EXPECT_GE(second.get(), 0);
  EXPECT_EQ(connect_to((folder.path + "/none").c_str()), -ENOENT);
  EXPECT_EQ(connect_to(std::string(200, 'x').c_str()), -ENAMETOOLONG);
}

TEST(Wire, TextFieldsNeverRunOver) {
  char field[8];
  put_text(field, sizeof field, "a");
  EXPECT_EQ(text_length(field, sizeof field), 1u);
  put_text(field, sizeof field, "longer than that");
  EXPECT_EQ(text_length(field, sizeof field), 8u);
}

}  // namespace
}  // namespace nvshare::wire
