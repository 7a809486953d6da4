#include "run.h"

#include <unistd.h>

#include <cstdio>

#include "process.h"

namespace nvshare::conformance {

std::string text_of(cuda::CUresult result) {
  if (result == kMissing) return "missing";
  const char* name = cuda::result_name(result);
  return name != nullptr ? name : "result " + std::to_string(static_cast<unsigned>(result));
}

void Run::line(const std::string& text) const {
  const std::string whole = section_ + "  " + text + "\n";
  std::size_t done = 0;
  while (done < whole.size()) {
    const ssize_t written = ::write(STDOUT_FILENO, whole.data() + done, whole.size() - done);
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

bool Run::begin() const {
  ++calls_;
  if (progress_ >= 0 && ::pwrite(progress_, &calls_, sizeof calls_, 0) < 0) return false;
  return skips_.find(calls_) == skips_.end();
}

cuda::CUresult Run::skipped(const char* text) const {
  const auto instead = skips_.find(calls_);
  line(std::string(text) + " -> " + (instead == skips_.end() ? "not made" : instead->second));
  return cuda::CUDA_ERROR_UNKNOWN;
}

cuda::CUresult Run::call(const char* text, cuda::CUresult result) const {
  line(std::string(text) + " -> " + text_of(result));
  return result;
}

cuda::CUresult Run::setup(const char* text, cuda::CUresult result) const {
  if (result != cuda::CUDA_SUCCESS) line("! " + std::string(text) + " -> " + text_of(result));
  return result;
}

void Run::value(const char* what, const std::string& text) const {
  line("  " + std::string(what) + " = " + text);
}

void Run::value(const char* what, bool value) const {
  this->value(what, std::string(value ? "yes" : "no"));
}

void Run::value(const char* what, const char* text) const {
  value(what, std::string(text == nullptr ? "null" : text));
}

void Run::value(const char* what, cuda::CUresult result) const {
  value(what, text_of(result));
}

void Run::value(const char* what, long long number) const {
  value(what, std::to_string(number));
}

void Run::value(const char* what, unsigned long long number) const {
  value(what, std::to_string(number));
}

void Run::value(const char* what, double number) const {
  char text[64];
  std::snprintf(text, sizeof text, "%.6g", number);
  value(what, std::string(text));
}

void Run::heading(const char* text) const {
  line("-- " + std::string(text));
}

void Run::helper(const char* name, const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {program_, "--helper", section_, name};
  command.insert(command.end(), arguments.begin(), arguments.end());
  begin();  // it takes time: this is progress, too
  const Outcome outcome = run_process(command, 6);
  if (::write(STDOUT_FILENO, outcome.output.data(), outcome.output.size()) < 0) return;
  if (outcome.timed_out) {
    line(std::string(name) + " -> did not end");
  } else if (outcome.signal != 0) {
    line(std::string(name) + " -> signal");
  } else if (outcome.exit_code != 0) {
    line(std::string(name) + " -> exit " + std::to_string(outcome.exit_code));
  }
}

}  // namespace nvshare::conformance
