// Prints what the CUDA driver answers to some hundred right and wrong calls, the same on every run,
// so that two drivers can be compared line by line (README.md). Each section runs in a process of
// its own; one that dies is run again without the call that killed it.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "process.h"
#include "sections.h"

namespace nvshare::conformance {
namespace {

constexpr int kCallSeconds = 8;       // a call that takes longer does not end
constexpr unsigned kMostDeaths = 40;  // of one section
constexpr unsigned kAtOnce = 2;       // sections at the same time

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

struct Report {
  std::string output;
  bool complete = false;
};

// Runs a section in a child until it gets through: what the last attempt printed, and whether it
// came to its end.
Report run_section(const std::string& program, const Section& section) {
  // Kept open in the child, which is told its number.
  const UniqueFd progress(::memfd_create("conformance-progress", 0));
  Skips skips;
  while (true) {
    const Outcome outcome = run_process(
        {program, "--child", section.name, to_text(skips), std::to_string(progress.get())},
        kCallSeconds, progress.get());
    const unsigned call = progress_in(progress.get());
    const bool died = outcome.timed_out || outcome.signal != 0;
    if (died && call > 0 && skips.size() < kMostDeaths && skips.count(call) == 0) {
      skips[call] = outcome.timed_out ? "did not end" : "signal";
      continue;
    }
    Report report = {outcome.output, !died && outcome.exit_code == 0};
    if (died) report.output += std::string(section.name) + "  the section died\n";
    if (!died && outcome.exit_code != 0) {
      report.output += std::string(section.name) + "  the section ended with " +
                       std::to_string(outcome.exit_code) + "\n";
    }
    return report;
  }
}

// The sections that need the card for themselves one by one, then the others, some at a time.
// Printed in the order of the list.
bool run_sections(const std::string& program, const std::vector<const Section*>& sections) {
  std::vector<Report> reports(sections.size());
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (sections[i]->company == Company::kNone) reports[i] = run_section(program, *sections[i]);
  }
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> workers;
  for (unsigned worker = 0; worker < kAtOnce; ++worker) {
    workers.emplace_back([&] {
      for (std::size_t i = next++; i < sections.size(); i = next++) {
        if (sections[i]->company == Company::kAny) reports[i] = run_section(program, *sections[i]);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  bool complete = true;
  for (const Report& report : reports) {
    std::fputs(report.output.c_str(), stdout);
    complete = complete && report.complete;
  }
  return complete;
}

int run_all(const std::string& program, bool probe) {
  std::vector<const Section*> sections;
  for (const Section& section : all_sections()) {
    if (section.probe == probe) sections.push_back(&section);
  }
  // While nobody uses it, a card may be shut down, and takes seconds to start for each process.
  const Companion holder({program, "--hold"}, 30);
  return run_sections(program, sections) ? EXIT_SUCCESS : EXIT_FAILURE;
}

// In the companion: keeps the card in use until it is killed.
int hold() {
  const Driver driver;
  if (!driver.loaded()) return 3;
  driver.function<cuda::FunctionId::cuInit>()(0);
  if (::write(STDOUT_FILENO, "holding\n", 8) < 0) return 1;
  while (true) ::pause();
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
  if (words.size() == 1 && words[0] == "--hold") return hold();
  if (words.size() == 1 && words[0] == "--list") return list();
  if (words.size() == 1 && words[0] == "--probe") return run_all(program, true);
  if (words.size() == 2 && words[0] == "--section") {
    const Section* section = find_section(words[1]);
    if (section == nullptr) return usage();
    return run_sections(program, {section}) ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  return usage();
}

}  // namespace
}  // namespace nvshare::conformance

int main(int argc, char** argv) {
  return nvshare::conformance::main_of({argv + 1, argv + argc});
}
