#include "daemon/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"

namespace nvshare::daemon {
namespace {

Error failed(const std::string& path) {
  return Error{fmt::format("{}: {}", path, std::strerror(errno))};
}

Result<void> write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Error{std::strerror(written < 0 ? errno : ENOSPC)};
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<std::string> read_all(int fd, std::size_t most) {
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    const auto length = ::read(fd, buffer.data(), buffer.size());
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return Error{std::strerror(errno)};
    if (length == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(length));
    if (text.size() > most) return Error{"is too long"};
  }
}

// Empty when there is no such file. A file that another user could have written says nothing
// about the changes of this scheduler's people.
Result<UniqueFd> open_own(const std::string& path) {
  // A pipe in its place would otherwise be waited for.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file && errno == ENOENT) return UniqueFd();
  if (!file && errno == ELOOP) return Error{"is a link"};
  if (!file) return Error{std::strerror(errno)};
  struct stat about {};
  if (fstat(file.get(), &about) < 0) return Error{std::strerror(errno)};
  if (!S_ISREG(about.st_mode)) return Error{"is not a file"};
  if (about.st_uid != geteuid()) return Error{"belongs to another user"};
  if ((about.st_mode & 022) != 0) return Error{"can be written by others"};
  return file;
}

// False when there is no such file.
Result<bool> read_state(const std::string& path, State& into) {
  const auto file = open_own(path);
  if (!file) return file.error();
  if (!*file) return false;
  const auto text = read_all(file->get(), kLongestState);
  if (!text) return text.error();
  auto state = parse_state(*text);
  if (!state) return state.error();
  into = std::move(*state);
  return true;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

void flush_folder(const std::string& path) {
  const UniqueFd folder(open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) (void)fsync(folder.get());
}

Result<void> write_new(const std::string& path, std::string_view text, Durable durable) {
  (void)unlink(path.c_str());
  const UniqueFd file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return failed(path);
  auto written = write_all(file.get(), text);
  if (written && durable == Durable::Yes && fsync(file.get()) < 0) {
    written = Error{std::strerror(errno)};
  }
  if (written) return {};
  (void)unlink(path.c_str());
  return written.error().with_context(path);
}

}  // namespace

StateFile::Found StateFile::load() const {
  Found found;
  for (const std::string& path : {path_, path_ + ".old"}) {
    const auto read = read_state(path, found.state);
    if (read && !*read) continue;
    if (read) {
      found.any = true;
      return found;
    }
    found.problems.push_back(path + ": " + read.error().message);
    if (path == path_) (void)rename(path.c_str(), (path_ + ".bad").c_str());
  }
  return found;
}

Result<void> StateFile::save(const State& state, Durable durable) {
  const std::string fresh = path_ + ".new";
  (void)mkdir(folder_of(path_).c_str(), 0700);
  if (const auto written = write_new(fresh, to_text(state), durable); !written) return written;
  // The one before is kept under a second name first, so that PATH is never missing. Only a file
  // that is on the disk for sure is worth keeping.
  if (durable_) {
    const std::string link_name = path_ + ".link";
    (void)unlink(link_name.c_str());
    if (link(path_.c_str(), link_name.c_str()) == 0) {
      (void)rename(link_name.c_str(), (path_ + ".old").c_str());
    }
  }
  if (rename(fresh.c_str(), path_.c_str()) < 0) {
    const Error error = failed(path_);
    (void)unlink(fresh.c_str());
    return error;
  }
  if (durable == Durable::Yes) flush_folder(path_);
  durable_ = durable == Durable::Yes;
  return {};
}

std::string boot_id() {
  const UniqueFd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  auto text = read_all(file.get(), 4096);
  if (!text) return {};
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return *text;
}

}  // namespace nvshare::daemon
