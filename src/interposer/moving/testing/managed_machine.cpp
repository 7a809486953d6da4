#include "interposer/moving/testing/managed_machine.h"

#include <cstring>

namespace nvshare::interposer::moving::managed {
namespace {

uint64_t used_now() {
  size_t free = 0;
  size_t total = 0;
  EXPECT_OK(real<FunctionId::cuMemGetInfo_v2>(&free, &total));
  return total - free;
}

}  // namespace

void ManagedMachine::SetUp() {
  ASSERT_OK(real<FunctionId::cuCtxCreate_v2>(&context, 0, 0));
  used_before_ = used_now();
}

void ManagedMachine::TearDown() {
  fail_call(0);
  while (!known.empty()) free(known.begin()->first);
  check_sums();
  EXPECT_EQ(used(), 0u);
  managed_context_leaving(context, true);
  EXPECT_OK(real<FunctionId::cuCtxDestroy_v2>(context));
  managed_context_gone(context);
  managed_reset_after_fork();
}

CUdeviceptr ManagedMachine::allocate(const ManagedWish& wish, uint64_t seed) {
  CUdeviceptr address = 0;
  EXPECT_OK(managed_allocate(gate, wish, &address));
  if (address == 0) return 0;
  EXPECT_EQ(known.count(address), 0u);
  EXPECT_OK(real<FunctionId::cuCtxSynchronize>());
  known[address] = {wish.bytes, seed};
  if (wish.room) told_resident += wish.bytes;
  if (seed == 0) return address;
  const auto data = pattern(seed, wish.bytes);
  EXPECT_OK(real<FunctionId::cuMemcpyHtoD_v2>(address, data.data(), data.size()));
  return address;
}

void ManagedMachine::free(CUdeviceptr address) {
  const Freed freed = managed_free(address);
  EXPECT_TRUE(freed.ours);
  EXPECT_OK(freed.result);
  EXPECT_EQ(freed.gate, &gate);
  EXPECT_EQ(freed.bytes, known[address].bytes);
  told_resident -= freed.resident;
  known.erase(address);
}

void ManagedMachine::check_contents() {
  for (const auto& [address, one] : known) {
    const auto expected = pattern(one.seed, one.bytes);
    EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(address), expected.data(), one.bytes), 0)
        << one.bytes << " bytes with seed " << one.seed;
  }
}

void ManagedMachine::check_sums() {
  EXPECT_EQ(managed_resident(gate) + managed_absent(gate), live());
  EXPECT_EQ(managed_resident(gate), told_resident);
}

bool ManagedMachine::move(Move* how, uint64_t bytes) {
  Told told{{}, 0, &on_progress};
  const bool done = how(gate, bytes, note_progress, &told);
  last = told.sum;
  reports = told.reports;
  EXPECT_EQ(last.copied, last.out + last.in);
  told_resident += last.in - last.out;
  return done;
}

bool ManagedMachine::out(uint64_t bytes) {
  const bool done = move(managed_out, bytes);
  EXPECT_EQ(last.in, 0u);
  return done;
}

bool ManagedMachine::in(uint64_t bytes) {
  const bool done = move(managed_in, bytes);
  EXPECT_EQ(last.out, 0u);
  EXPECT_LE(last.in, bytes);
  return done;
}

uint64_t ManagedMachine::used() const {
  return used_now() - used_before_;
}

uint64_t ManagedMachine::live() const {
  uint64_t sum = 0;
  for (const auto& [address, one] : known) sum += one.bytes;
  return sum;
}

}  // namespace nvshare::interposer::moving::managed
