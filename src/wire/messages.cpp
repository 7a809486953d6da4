#include "wire/messages.h"

#include <string.h>

namespace nvshare::wire {

static_assert(RunBegin::kLeast == offsetof(RunBegin, choice));
static_assert(Welcome::kLeast == offsetof(Welcome, gpu_count));
static_assert(Shortage::kLeast == offsetof(Shortage, level_used));

size_t size_of(Type type) {
  switch (type) {
#define NVSHARE_MESSAGE(name) \
  case Type::name:            \
    return least_size<name>()
    NVSHARE_MESSAGE(Hello);
    NVSHARE_MESSAGE(RunBegin);
    NVSHARE_MESSAGE(RequestGrant);
    NVSHARE_MESSAGE(Released);
    NVSHARE_MESSAGE(MemoryRequest);
    NVSHARE_MESSAGE(MemoryFreed);
    NVSHARE_MESSAGE(MemoryMoved);
    NVSHARE_MESSAGE(Look);
    NVSHARE_MESSAGE(MemoryPinned);
    NVSHARE_MESSAGE(Welcome);
    NVSHARE_MESSAGE(Refused);
    NVSHARE_MESSAGE(Grant);
    NVSHARE_MESSAGE(Drop);
    NVSHARE_MESSAGE(MemoryAvailable);
    NVSHARE_MESSAGE(MemoryWait);
    NVSHARE_MESSAGE(MemoryRefused);
    NVSHARE_MESSAGE(SwapOut);
    NVSHARE_MESSAGE(SwapIn);
    NVSHARE_MESSAGE(Limits);
    NVSHARE_MESSAGE(Mode);
    NVSHARE_MESSAGE(Arena);
    NVSHARE_MESSAGE(View);
    NVSHARE_MESSAGE(ArenaReturned);
    NVSHARE_MESSAGE(ArenaKept);
    NVSHARE_MESSAGE(ArenaMissing);
    NVSHARE_MESSAGE(ArenaNeed);
    NVSHARE_MESSAGE(Shortage);
    NVSHARE_MESSAGE(IpcExports);
    NVSHARE_MESSAGE(IpcOpen);
    NVSHARE_MESSAGE(IpcPiece);
    NVSHARE_MESSAGE(IpcWanted);
    NVSHARE_MESSAGE(IpcPeer);
    NVSHARE_MESSAGE(ArenaTaken);
    NVSHARE_MESSAGE(ArenaPassed);
    NVSHARE_MESSAGE(ArenaClosed);
    NVSHARE_MESSAGE(ArenaShared);
    NVSHARE_MESSAGE(ArenaYours);
    NVSHARE_MESSAGE(ArenaClose);
#undef NVSHARE_MESSAGE
  }
  return 0;
}

const Header* look_at(const void* packet, size_t length) {
  if (packet == nullptr || length < sizeof(Header) || length > kMaxMessage) return nullptr;
  const auto* header = static_cast<const Header*>(packet);
  if (header->size != length) return nullptr;
  if (length < size_of(static_cast<Type>(header->type))) return nullptr;
  return header;
}

void put_text(char* field, size_t size, const char* text) {
  memset(field, 0, size);
  memcpy(field, text, strnlen(text, size));
}

size_t text_length(const char* field, size_t size) {
  return strnlen(field, size);
}

}  // namespace nvshare::wire
