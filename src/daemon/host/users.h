#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
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
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;
  explicit SubordinateUsers(NameLookup::Find find_user, std::string path = "/etc/subuid",
                            Now now = Clock::now)
      : find_user_(std::move(find_user)), path_(std::move(path)), now_(std::move(now)) {}

  // The user that the number is given to. Every other number is its own. An error where the machine
  // does not know the user: its directory may be away, and the number as a user of its own would be
  // outside of that user's limits. The user that was known last counts meanwhile.
  Result<std::uint32_t> user_of(std::uint32_t uid);

  // How long a user that is not known is not asked for again. Programs ask every second, and a
  // directory that is away may be slow. A larger number leaves programs waiting longer.
  static constexpr std::chrono::seconds kAskAgain{5};

 private:
  struct Range {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::string user;  // a name or a number
    bool asked = false;
  };
  void read_again();
  std::optional<std::uint32_t> owner_of(Range& range);

  NameLookup::Find find_user_;
  std::string path_;
  Now now_;
  std::optional<timespec> changed_;
  std::vector<Range> ranges_;
  std::map<std::string, std::uint32_t> known_;          // users by their names
  std::map<std::string, Clock::time_point> ask_again_;  // names that were not known
};

}  // namespace nvshare::daemon
