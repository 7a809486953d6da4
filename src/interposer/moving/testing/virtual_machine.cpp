#include "interposer/moving/testing/virtual_machine.h"

#include <cstring>

namespace nvshare::interposer::moving::swap {

Freed VirtualMachine::freed;
Freed VirtualMachine::unsettled;

void VirtualMachine::note_freed(const Freed& one) {
  EXPECT_TRUE(one.ours);
  for (Freed* sum : {&freed, &unsettled}) {
    sum->bytes += one.bytes;
    sum->resident += one.resident;
    sum->pinned += one.pinned;
  }
}

void VirtualMachine::settle_freed() {
  made -= unsettled.bytes;
  told_resident -= unsettled.resident;
  unsettled = {};
}

void VirtualMachine::SetUp() {
  FaultMachine::SetUp();
  swap_context_made(gate, context);
  ASSERT_OK(swap_reserve(&range, kRange, 0, 0, 0));
  end = range;
}

void VirtualMachine::TearDown() {
  unmap(range, kRange);
  while (!handles.empty()) release(*handles.begin());
  EXPECT_EQ(made, 0u);
  EXPECT_OK(swap_unreserve(range, kRange));
  FaultMachine::TearDown();
}

void VirtualMachine::check_all() {
  FaultMachine::check_all();
  for (const auto& [address, one] : written) {
    const SwapHold hold(address);
    if (hold.away()) continue;
    EXPECT_TRUE(has(address, one.bytes, one.seed)) << "seed " << one.seed;
  }
}

CUmemAllocationProp VirtualMachine::kind() {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return kind;
}

CUmemAccessDesc VirtualMachine::may(CUmemAccess_flags flags) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
}

Handle VirtualMachine::create(uint64_t bytes, bool room) {
  EXPECT_TRUE(swap_can_follow(gate, bytes, kind(), 0));
  Handle handle = 0;
  EXPECT_OK(swap_create(gate, bytes, kind(), room, &handle));
  if (handle == 0) return 0;
  made += bytes;
  told_resident += room ? bytes : 0;
  handles.insert(handle);
  return handle;
}

void VirtualMachine::map(Handle handle, CUdeviceptr address) {
  CUmemAllocationProp unused{};
  ASSERT_OK(swap_properties(&unused, handle));
  uint64_t bytes = kGranule;
  while (swap_map(address, bytes, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED) bytes += kGranule;
  const CUmemAccessDesc access = may(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_OK(swap_set_access(address, bytes, &access, 1));
}

Handle VirtualMachine::grow(uint64_t bytes, uint64_t seed) {
  const Handle handle = create(bytes);
  map(handle, end);
  fill(end, bytes, seed);
  end += bytes;
  return handle;
}

void VirtualMachine::unmap(CUdeviceptr address, uint64_t bytes) {
  freed = {};
  EXPECT_OK(swap_unmap(address, bytes, note_freed));
  settle_freed();
  written.erase(written.lower_bound(address), written.lower_bound(address + bytes));
}

void VirtualMachine::release(Handle handle) {
  freed = {};
  EXPECT_OK(swap_release(handle, note_freed));
  settle_freed();
  handles.erase(handles.find(handle));
}

void VirtualMachine::fill(CUdeviceptr address, uint64_t bytes, uint64_t seed) {
  const auto data = pattern(seed, bytes);
  EXPECT_OK(real<FunctionId::cuMemcpyHtoD_v2>(address, data.data(), data.size()));
  written[address] = {bytes, seed};
}

bool VirtualMachine::has(CUdeviceptr address, uint64_t bytes, uint64_t seed) const {
  std::vector<unsigned char> found(bytes);
  EXPECT_OK(real<FunctionId::cuMemcpyDtoH_v2>(found.data(), address, found.size()));
  return std::memcmp(found.data(), pattern(seed, bytes).data(), bytes) == 0;
}

unsigned long long VirtualMachine::access_at(CUdeviceptr address) const {
  unsigned long long flags = 99;
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  EXPECT_OK(swap_get_access(&flags, &device, address));
  return flags;
}

void VirtualMachine::there_and_back() {
  EXPECT_TRUE(out_all());
  check_sums();
  EXPECT_EQ(used(), used_before);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(swap_absent(gate), 0u);
  check_all();
}

}  // namespace nvshare::interposer::moving::swap
