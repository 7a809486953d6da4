// The client in C++17 and without exceptions.

#include "nvshare/lease.hpp"

namespace nvshare {

std::string acquire_in_cxx17(const std::string& socket) {
  const LeaseClient client(socket);
  LeaseRequest request;
  request.task_class = "ASR";
  request.max_wait = std::chrono::milliseconds(500);
  LeaseAnswer got = client.acquire(request);
  if (!got.lease) return "";
  const Lease lease = std::move(*got.lease);
  return lease.id();
}

}  // namespace nvshare
