#include "daemon/serve/shared_page.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>

namespace nvshare::daemon {

Result<SharedPage> SharedPage::make() {
  const auto failed = [] { return Error{std::string("shared page: ") + std::strerror(errno)}; };
  SharedPage page;
  page.fd_.reset(memfd_create("nvshare-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!page.fd_ || ftruncate(page.fd(), wire::kPageSize) < 0) return failed();
  // A page that could be made shorter would end whoever reads it.
  if (fcntl(page.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) return failed();
  void* mapped = mmap(nullptr, wire::kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, page.fd(), 0);
  if (mapped == MAP_FAILED) return failed();
  page.page_ = new (mapped) wire::Page{};
  return page;
}

SharedPage::~SharedPage() {
  if (page_ != nullptr) munmap(page_, wire::kPageSize);
}

}  // namespace nvshare::daemon
