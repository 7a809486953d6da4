#pragma once

#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"
#include "wire/page.h"

namespace nvshare::daemon {

// The page that is shared with one client: sealed, so that the other end cannot take it away.
class SharedPage {
 public:
  SharedPage() = default;
  static Result<SharedPage> make();
  ~SharedPage();
  SharedPage(SharedPage&& other) noexcept
      : page_(std::exchange(other.page_, nullptr)), fd_(std::move(other.fd_)) {}
  SharedPage& operator=(SharedPage&& other) noexcept {
    std::swap(page_, other.page_);
    std::swap(fd_, other.fd_);
    return *this;
  }

  wire::Page& operator*() const { return *page_; }
  int fd() const { return fd_.get(); }
  // Once it has been handed over.
  void close_fd() { fd_.reset(); }

 private:
  wire::Page* page_ = nullptr;
  UniqueFd fd_;
};

}  // namespace nvshare::daemon
