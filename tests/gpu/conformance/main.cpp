// Prints what the CUDA driver answers to some hundred right and wrong calls, the same on every run,
// so that two drivers can be compared line by line (README.md). Each section runs in a process of
// its own; one that dies is run again without the call that killed it.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "process.h"
#include "sections.h"

namespace nvshare::conformance {
namespace {

constexpr int kSectionSeconds = 10;
constexpr unsigned kMostDeaths = 40;

const Section* find_section(const std::string& name) {
  for (const Section& section : all_sections()) {
    if (name == section.name) return &section;
  }
  return nullptr;
}

std::string to_text(const Skips& skips) {
  std::string text;
  for (const auto& [call, instead] : skips) text += std::to_string(call) + "=" + instead + ";";
  return text;
}

Skips skips_from(const std::string& text) {
  Skips skips;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t equals = text.find('=', at);
    const std::size_t end = text.find(';', at);
    if (equals == std::string::npos || end == std::string::npos) break;
    skips[static_cast<unsigned>(std::strtoul(text.c_str() + at, nullptr, 10))] =
        text.substr(equals + 1, end - equals - 1);
    at = end + 1;
  }
  return skips;
}

// Runs a section in a child until it gets through; prints what the last attempt printed. False
// when it could not be brought to its end.
bool run_section(const std::string& program, const Section& section) {
  // Kept open in the child, which is told its number.
  const UniqueFd progress(::memfd_create("conformance-progress", 0));
  Skips skips;
  while (true) {
    const Outcome outcome = run_process(
        {program, "--child", section.name, to_text(skips), std::to_string(progress.get())},
        kSectionSeconds);
    unsigned call = 0;
    const bool known = ::pread(progress.get(), &call, sizeof call, 0) == sizeof call && call > 0;
    const bool died = outcome.timed_out || outcome.signal != 0;
    if (died && known && skips.size() < kMostDeaths && skips.count(call) == 0) {
      skips[call] = outcome.timed_out ? "did not end" : "signal";
      continue;
    }
    std::fputs(outcome.output.c_str(), stdout);
    if (died) std::printf("%s  the section died\n", section.name);
    if (!died && outcome.exit_code != 0) {
      std::printf("%s  the section ended with %d\n", section.name, outcome.exit_code);
    }
    std::fflush(stdout);
    return !died && outcome.exit_code == 0;
  }
}

int run_all(const std::string& program, bool probe) {
  bool complete = true;
  for (const Section& section : all_sections()) {
    if (section.probe == probe && !run_section(program, section)) complete = false;
  }
  return complete ? EXIT_SUCCESS : EXIT_FAILURE;
}

// In the child: the section itself.
int child(const std::string& program, const std::vector<std::string>& words) {
  if (words.size() != 4) return 2;
  const Section* section = find_section(words[1]);
  if (section == nullptr) return 2;
  const Driver driver;
  if (!driver.loaded()) {
    std::fprintf(stderr, "conformance: %s\n", ::dlerror());
    return 3;
  }
  Run run(driver, section->name, program, skips_from(words[2]), std::atoi(words[3].c_str()));
  section->run(run);
  return EXIT_SUCCESS;
}

// A helper of a section, in a process of its own: --helper SECTION NAME ARGUMENTS...
int helper(const std::string& program, const std::vector<std::string>& words) {
  if (words.size() < 3) return 2;
  const Driver driver;
  if (!driver.loaded()) return 3;
  Run run(driver, words[1], program, {}, -1);
  for (const Helper& each : all_helpers()) {
    if (words[2] == each.name) {
      each.run(run, {words.begin() + 3, words.end()});
      return EXIT_SUCCESS;
    }
  }
  return 2;
}

int list() {
  for (const Section& section : all_sections()) {
    std::printf("%s%s\n", section.name, section.probe ? "  (with --probe)" : "");
  }
  return EXIT_SUCCESS;
}

int usage() {
  std::fprintf(stderr,
               "usage: conformance [--list | --section NAME | --probe]\n"
               "Prints what the CUDA driver (libcuda.so.1) answers to a fixed list of calls.\n"
               "  --list          the names of the sections\n"
               "  --section NAME  one section\n"
               "  --probe         facts about this driver that are no part of the comparison\n");
  return 2;
}

std::string own_path() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : std::string();
}

int main_of(const std::vector<std::string>& words) {
  const std::string program = own_path();
  if (words.empty()) return run_all(program, false);
  if (words[0] == "--child") return child(program, words);
  if (words[0] == "--helper") return helper(program, words);
  if (words.size() == 1 && words[0] == "--list") return list();
  if (words.size() == 1 && words[0] == "--probe") return run_all(program, true);
  if (words.size() == 2 && words[0] == "--section") {
    const Section* section = find_section(words[1]);
    if (section == nullptr) return usage();
    return run_section(program, *section) ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  return usage();
}

}  // namespace
}  // namespace nvshare::conformance

int main(int argc, char** argv) {
  return nvshare::conformance::main_of({argv + 1, argv + argc});
}
