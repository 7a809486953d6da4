#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "daemon/settings_tables.h"

// Users and groups of this machine. Any of these questions may be answered over the network.
namespace nvshare::daemon {

NameLookup system_names();

// The groups of a user; none for a number without a user. Nothing when that could not be asked.
std::optional<std::vector<std::uint32_t>> groups_of_user(std::uint32_t uid);

// Numbers that a file like /etc/subuid gives to users, for their containers: a process with such a
// number is that user's. The file is read again when it changes.
class SubordinateUsers {
 public:
  explicit SubordinateUsers(NameLookup::Find find_user, std::string path = "/etc/subuid")
      : find_user_(std::move(find_user)), path_(std::move(path)) {}

  // The user that the number is given to. Every other number is its own.
  std::uint32_t user_of(std::uint32_t uid);

 private:
  struct Range {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::string user;  // a name or a number
    std::optional<std::uint32_t> owner{};
  };
  void read_again();

  NameLookup::Find find_user_;
  std::string path_;
  std::optional<timespec> changed_;
  std::vector<Range> ranges_;
};

}  // namespace nvshare::daemon
