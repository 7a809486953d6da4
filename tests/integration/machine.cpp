#include "integration/machine.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace nvshare::integration {

Duration waited_for_processors() {
  std::ifstream file("/proc/pressure/cpu");
  std::string line;
  std::getline(file, line);
  const std::size_t at = line.find("total=");
  if (at == std::string::npos) return {};
  return std::chrono::microseconds(std::atoll(line.c_str() + at + 6));
}

Duration stolen_from_processors() {
  std::ifstream file("/proc/stat");
  std::string name;
  long long user = 0, nice = 0, system = 0, idle = 0, io = 0, irq = 0, soft = 0, steal = 0;
  file >> name >> user >> nice >> system >> idle >> io >> irq >> soft >> steal;
  if (!file) return {};
  return Duration(std::chrono::seconds(1)) / ::sysconf(_SC_CLK_TCK) * steal;
}

double stolen_part(Duration before, Duration ago) {
  const auto processors = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (ago <= Duration::zero()) return 0;
  return std::chrono::duration<double>(stolen_from_processors() - before) /
         (std::chrono::duration<double>(ago) * processors);
}

}  // namespace nvshare::integration
