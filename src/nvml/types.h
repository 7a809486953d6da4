#pragma once

#include <stddef.h>

// Our own minimal declarations of NVML's ABI (libnvidia-ml.so.1, CUDA 13.0): names, values and
// layouts as the library has them, checked against the vendor's header where one is installed
// (vendor_check.cpp). They live in a namespace, so that the vendor's header can be included beside
// them. Some constants are macros there: include this header before the vendor's, never after it.
//
// Nothing here needs the C++ library: the interposer is built from these headers too.
namespace nvshare::nvml {

struct nvmlDevice_st;
using nvmlDevice_t = nvmlDevice_st*;

#define NVSHARE_NVML_ENUM_BEGIN(enumeration) enum enumeration : unsigned {
#define NVSHARE_NVML_VALUE(enumerator, value) enumerator = value,
#define NVSHARE_NVML_ENUM_END(enumeration) \
  }                                        \
  ;
#define NVSHARE_NVML_CONSTANT(name, value) inline constexpr unsigned name = value;
#include "nvml/enums.def"

using nvmlDeviceArchitecture_t = unsigned;

// A field for which there is no value holds this, cut to its width.
inline constexpr unsigned long long kNotAvailable = ~0ULL;

// The `version` member of a structure that has one: its size and which version of it this is.
template <typename Structure>
constexpr unsigned struct_version(unsigned version) {
  return static_cast<unsigned>(sizeof(Structure)) | version << 24;
}

struct nvmlPciInfo_t {
  char busIdLegacy[NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pciDeviceId;
  unsigned pciSubSystemId;
  char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
};
static_assert(sizeof(nvmlPciInfo_t) == 68 && offsetof(nvmlPciInfo_t, busId) == 36);

// What nvmlDeviceGetPciInfo and nvmlDeviceGetPciInfo_v2 fill: programs built against the headers of
// their day have no room for more. The functions are declared with nvmlPciInfo_t all the same.
struct nvmlPciInfo_v2 {
  char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pciDeviceId;
  unsigned pciSubSystemId;
  unsigned reserved[4];
};
static_assert(sizeof(nvmlPciInfo_v2) == 52);

struct nvmlUtilization_t {
  unsigned gpu;
  unsigned memory;
};
static_assert(sizeof(nvmlUtilization_t) == 8);

struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;  // what is reserved among it
};
static_assert(sizeof(nvmlMemory_t) == 24);

struct nvmlMemory_v2_t {
  unsigned version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
static_assert(struct_version<nvmlMemory_v2_t>(2) == 0x02000028);

struct nvmlBAR1Memory_t {
  unsigned long long bar1Total;
  unsigned long long bar1Free;
  unsigned long long bar1Used;
};
static_assert(sizeof(nvmlBAR1Memory_t) == 24);

// nvmlDeviceGetComputeRunningProcesses and its siblings without a version take arrays of this,
// those of _v2 and _v3 arrays of the next one.
struct nvmlProcessInfo_v1_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
};
static_assert(sizeof(nvmlProcessInfo_v1_t) == 16);

struct nvmlProcessInfo_v2_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId;
  unsigned computeInstanceId;
};
static_assert(sizeof(nvmlProcessInfo_v2_t) == 24);
using nvmlProcessInfo_t = nvmlProcessInfo_v2_t;

struct nvmlProcessUtilizationSample_t {
  unsigned pid;
  unsigned long long timeStamp;  // microseconds since 1970
  unsigned smUtil;               // percent, as the others
  unsigned memUtil;
  unsigned encUtil;
  unsigned decUtil;
};
static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32);

struct nvmlProcessUtilizationInfo_v1_t {
  unsigned long long timeStamp;
  unsigned pid;
  unsigned smUtil;
  unsigned memUtil;
  unsigned encUtil;
  unsigned decUtil;
  unsigned jpgUtil;
  unsigned ofaUtil;
};
static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40);

struct nvmlProcessesUtilizationInfo_v1_t {
  unsigned version;
  unsigned processSamplesCount;
  unsigned long long lastSeenTimeStamp;
  nvmlProcessUtilizationInfo_v1_t* procUtilArray;
};
static_assert(struct_version<nvmlProcessesUtilizationInfo_v1_t>(1) == 0x01000018);
using nvmlProcessesUtilizationInfo_t = nvmlProcessesUtilizationInfo_v1_t;

union nvmlValue_t {
  double dVal;
  int siVal;
  unsigned uiVal;
  unsigned long ulVal;
  unsigned long long ullVal;
  signed long long sllVal;
  unsigned short usVal;
};
static_assert(sizeof(nvmlValue_t) == 8);

struct nvmlSample_t {
  unsigned long long timeStamp;
  nvmlValue_t sampleValue;
};
static_assert(sizeof(nvmlSample_t) == 16);

struct nvmlFieldValue_t {
  unsigned fieldId;
  unsigned scopeId;
  long long timestamp;
  long long latencyUsec;
  nvmlValueType_t valueType;
  nvmlReturn_t nvmlReturn;
  nvmlValue_t value;
};
static_assert(sizeof(nvmlFieldValue_t) == 40);

struct nvmlDeviceAttributes_t {
  unsigned multiprocessorCount;
  unsigned sharedCopyEngineCount;
  unsigned sharedDecoderCount;
  unsigned sharedEncoderCount;
  unsigned sharedJpegCount;
  unsigned sharedOfaCount;
  unsigned gpuInstanceSliceCount;
  unsigned computeInstanceSliceCount;
  unsigned long long memorySizeMB;
};
static_assert(sizeof(nvmlDeviceAttributes_t) == 40);

}  // namespace nvshare::nvml
