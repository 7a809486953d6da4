// Devices: what can be asked, and how wrong questions are answered.

#include <cstring>
#include <string>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr CUdevice kNoDevice = 99;

void handles(Run& run) {
  int count = 0;
  CUdevice device = -5;
  CALL(cuDeviceGetCount, &count);
  CALL(cuDeviceGetCount, nullptr);
  CALL(cuDeviceGet, &device, 0);
  run.value("device", device);
  CALL(cuDeviceGet, &device, -1);
  CALL(cuDeviceGet, &device, count);
  CALL(cuDeviceGet, nullptr, 0);
}

void names(Run& run) {
  char name[256] = {};
  CUuuid uuid = {};
  CUuuid same = {};
  char luid[8] = {};
  unsigned mask = 0;
  CALL(cuDeviceGetName, name, sizeof name, 0);
  run.value("name is given", name[0] != '\0');
  char brief[4] = {'x', 'x', 'x', 'x'};
  CALL(cuDeviceGetName, brief, 4, 0);
  run.value("ends with a null", brief[3] == '\0');
  run.value("is the beginning of the name", std::strncmp(brief, name, 3) == 0);
  CALL(cuDeviceGetName, name, 0, 0);
  CALL(cuDeviceGetName, nullptr, sizeof name, 0);
  CALL(cuDeviceGetName, name, sizeof name, kNoDevice);
  CALL(cuDeviceGetUuid_v2, &uuid, 0);
  CALL(cuDeviceGetUuid, &same, 0);
  run.value("both versions agree", std::memcmp(&uuid, &same, sizeof uuid) == 0);
  CALL(cuDeviceGetUuid_v2, nullptr, 0);
  CALL(cuDeviceGetUuid_v2, &uuid, kNoDevice);
  CALL(cuDeviceGetLuid, luid, &mask, 0);
}

void bus_ids(Run& run) {
  char id[64] = {};
  CUdevice device = -1;
  CALL(cuDeviceGetPCIBusId, id, sizeof id, 0);
  run.value("form is dddddddd:bb:dd.f or dddd:bb:dd.f",
            std::strlen(id) == 16 || std::strlen(id) == 12);
  run.value("length", static_cast<int>(std::strlen(id)));
  CALL(cuDeviceGetByPCIBusId, &device, id);
  run.value("leads back to the device", device == 0);
  CALL(cuDeviceGetByPCIBusId, &device, "7fff:1f:1f.7");
  CALL(cuDeviceGetByPCIBusId, &device, "nonsense");
  CALL(cuDeviceGetByPCIBusId, &device, nullptr);
  CALL(cuDeviceGetByPCIBusId, nullptr, id);
  CALL(cuDeviceGetPCIBusId, id, 5, 0);
  CALL(cuDeviceGetPCIBusId, id, 0, 0);
  CALL(cuDeviceGetPCIBusId, nullptr, sizeof id, 0);
  CALL(cuDeviceGetPCIBusId, id, sizeof id, kNoDevice);
}

void sizes(Run& run) {
  size_t bytes = 0;
  int major = 0;
  int minor = 0;
  int attribute_major = 0;
  int attribute_minor = 0;
  CUdevprop properties = {};
  CALL(cuDeviceTotalMem_v2, &bytes, 0);
  run.value("more than 1 GiB", bytes > 1024 * kMiB);
  CALL(cuDeviceTotalMem_v2, nullptr, 0);
  CALL(cuDeviceTotalMem_v2, &bytes, kNoDevice);
  CALL(cuDeviceComputeCapability, &major, &minor, 0);
  SETUP(cuDeviceGetAttribute, &attribute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  SETUP(cuDeviceGetAttribute, &attribute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
  run.value("is what the attributes say", major == attribute_major && minor == attribute_minor);
  CALL(cuDeviceComputeCapability, nullptr, &minor, 0);
  CALL(cuDeviceComputeCapability, &major, &minor, kNoDevice);
  CALL(cuDeviceGetProperties, &properties, 0);
  run.value("maxThreadsPerBlock", properties.maxThreadsPerBlock);
  run.value("SIMDWidth", properties.SIMDWidth);
  CALL(cuDeviceGetProperties, nullptr, 0);
}

void peers(Run& run) {
  int value = -1;
  CALL(cuDeviceCanAccessPeer, &value, 0, 0);
  run.value("a device is its own peer", value);
  CALL(cuDeviceCanAccessPeer, &value, 0, kNoDevice);
  CALL(cuDeviceCanAccessPeer, nullptr, 0, 0);
  CALL(cuDeviceGetP2PAttribute, &value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0);
  CALL(cuDeviceGetP2PAttribute, &value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, kNoDevice);
  CALL(cuDeviceGetExecAffinitySupport, &value, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0);
  CALL(cuDeviceGetExecAffinitySupport, &value, CU_EXEC_AFFINITY_TYPE_MAX, 0);
  CALL(cuDeviceGetExecAffinitySupport, nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0);
}

}  // namespace

void devices(Run& run) {
  SETUP(cuInit, 0);
  handles(run);
  names(run);
  bus_ids(run);
  sizes(run);
  peers(run);
}

namespace {

// An attribute by name; `exact` when every card of interest gives the same number.
struct Attribute {
  CUdevice_attribute attribute;
  const char* name;
  bool exact;
};

#define EXACT(name) \
  { CU_DEVICE_ATTRIBUTE_##name, #name, true }
#define POSITIVE(name) \
  { CU_DEVICE_ATTRIBUTE_##name, #name, false }

constexpr Attribute kAttributes[] = {
    EXACT(MAX_THREADS_PER_BLOCK),
    EXACT(MAX_BLOCK_DIM_X),
    EXACT(MAX_BLOCK_DIM_Y),
    EXACT(MAX_BLOCK_DIM_Z),
    EXACT(MAX_GRID_DIM_X),
    EXACT(MAX_GRID_DIM_Y),
    EXACT(MAX_GRID_DIM_Z),
    EXACT(MAX_SHARED_MEMORY_PER_BLOCK),
    EXACT(TOTAL_CONSTANT_MEMORY),
    EXACT(WARP_SIZE),
    EXACT(MAX_PITCH),
    EXACT(MAX_REGISTERS_PER_BLOCK),
    POSITIVE(CLOCK_RATE),
    EXACT(TEXTURE_ALIGNMENT),
    EXACT(GPU_OVERLAP),
    POSITIVE(MULTIPROCESSOR_COUNT),
    EXACT(KERNEL_EXEC_TIMEOUT),
    EXACT(INTEGRATED),
    EXACT(CAN_MAP_HOST_MEMORY),
    EXACT(COMPUTE_MODE),
    EXACT(CONCURRENT_KERNELS),
    POSITIVE(ECC_ENABLED),
    POSITIVE(PCI_BUS_ID),
    POSITIVE(PCI_DEVICE_ID),
    POSITIVE(PCI_DOMAIN_ID),
    EXACT(TCC_DRIVER),
    POSITIVE(MEMORY_CLOCK_RATE),
    POSITIVE(GLOBAL_MEMORY_BUS_WIDTH),
    POSITIVE(L2_CACHE_SIZE),
    EXACT(MAX_THREADS_PER_MULTIPROCESSOR),
    EXACT(ASYNC_ENGINE_COUNT),
    EXACT(UNIFIED_ADDRESSING),
    EXACT(COMPUTE_CAPABILITY_MAJOR),
    EXACT(COMPUTE_CAPABILITY_MINOR),
    EXACT(STREAM_PRIORITIES_SUPPORTED),
    EXACT(GLOBAL_L1_CACHE_SUPPORTED),
    EXACT(LOCAL_L1_CACHE_SUPPORTED),
    EXACT(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    EXACT(MAX_REGISTERS_PER_MULTIPROCESSOR),
    EXACT(MANAGED_MEMORY),
    EXACT(MULTI_GPU_BOARD),
    EXACT(HOST_NATIVE_ATOMIC_SUPPORTED),
    EXACT(PAGEABLE_MEMORY_ACCESS),
    EXACT(CONCURRENT_MANAGED_ACCESS),
    EXACT(COMPUTE_PREEMPTION_SUPPORTED),
    EXACT(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
    EXACT(CAN_USE_STREAM_MEM_OPS_V1),
    EXACT(CAN_USE_64_BIT_STREAM_MEM_OPS),
    EXACT(CAN_USE_STREAM_WAIT_VALUE_NOR),
    EXACT(COOPERATIVE_LAUNCH),
    EXACT(COOPERATIVE_MULTI_DEVICE_LAUNCH),
    EXACT(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    POSITIVE(CAN_FLUSH_REMOTE_WRITES),
    EXACT(HOST_REGISTER_SUPPORTED),
    EXACT(PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
    EXACT(DIRECT_MANAGED_MEM_ACCESS_FROM_HOST),
    EXACT(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
    EXACT(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
    EXACT(HANDLE_TYPE_WIN32_HANDLE_SUPPORTED),
    EXACT(MAX_BLOCKS_PER_MULTIPROCESSOR),
    POSITIVE(GENERIC_COMPRESSION_SUPPORTED),
    POSITIVE(MAX_PERSISTING_L2_CACHE_SIZE),
    POSITIVE(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
    EXACT(RESERVED_SHARED_MEMORY_PER_BLOCK),
    POSITIVE(SPARSE_CUDA_ARRAY_SUPPORTED),
    EXACT(READ_ONLY_HOST_REGISTER_SUPPORTED),
    EXACT(TIMELINE_SEMAPHORE_INTEROP_SUPPORTED),
    EXACT(MEMORY_POOLS_SUPPORTED),
    POSITIVE(GPU_DIRECT_RDMA_SUPPORTED),
    EXACT(MEMPOOL_SUPPORTED_HANDLE_TYPES),
    EXACT(CLUSTER_LAUNCH),
    EXACT(DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED),
    POSITIVE(DMA_BUF_SUPPORTED),
    EXACT(IPC_EVENT_SUPPORTED),
    POSITIVE(MEM_SYNC_DOMAIN_COUNT),
    EXACT(TENSOR_MAP_ACCESS_SUPPORTED),
    EXACT(UNIFIED_FUNCTION_POINTERS),
    POSITIVE(MULTICAST_SUPPORTED),
    POSITIVE(HOST_NUMA_ID),
};

}  // namespace

void attributes(Run& run) {
  SETUP(cuInit, 0);
  int value = 0;
  const auto no_such_attribute = static_cast<CUdevice_attribute>(9999);
  const auto zero_attribute = static_cast<CUdevice_attribute>(0);
  CALL(cuDeviceGetAttribute, nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0);
  CALL(cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, kNoDevice);
  CALL(cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, -1);
  CALL(cuDeviceGetAttribute, &value, no_such_attribute, 0);
  CALL(cuDeviceGetAttribute, &value, zero_attribute, 0);
  for (const Attribute& each : kAttributes) {
    value = -1;
    const CUresult result = QUIET(cuDeviceGetAttribute, &value, each.attribute, 0);
    if (result != CUDA_SUCCESS) {
      run.value(each.name, result);
    } else if (each.exact) {
      run.value(each.name, value);
    } else {
      run.value(each.name, value >= 0 ? "a number" : "negative");
    }
  }
}

}  // namespace nvshare::conformance
