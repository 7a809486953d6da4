// Says how many interrupts it got, at each; a shell would take two that come close for one.

#include <unistd.h>

#include <csignal>

namespace {

void say(int) {
  static char line[] = "interrupted 0\n";
  ++line[sizeof line - 3];
  [[maybe_unused]] const auto said = ::write(1, line, sizeof line - 1);
}

}  // namespace

int main() {
  ::alarm(60);  // whatever the test does
  struct sigaction action {};
  action.sa_handler = say;
  ::sigaction(SIGINT, &action, nullptr);
  [[maybe_unused]] const auto said = ::write(1, "started\n", 8);
  for (;;) ::pause();
}
