#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

namespace nvshare::conformance {

// Calls of a section that are not to be made, by their number from 1, and what to print instead:
// a call that ended the process (or never came back) is left out when the section runs again.
using Skips = std::map<unsigned, std::string>;

// One section at work: the driver, and the lines that are printed. Every line begins with the
// section's name and is written at once, so that nothing is lost when the driver ends the process.
class Run {
 public:
  // `progress` is a file in which the number of the call under way stands; -1 for none.
  Run(const Driver& driver, std::string section, std::string program, Skips skips, int progress)
      : driver_(driver),
        section_(std::move(section)),
        program_(std::move(program)),
        skips_(std::move(skips)),
        progress_(progress) {}

  const Driver& driver() const { return driver_; }

  // Counts a call that is about to be made; false when it is one to skip.
  bool begin() const;

  // "section  text -> CUDA_SUCCESS"; gives the result back.
  cuda::CUresult call(const char* text, cuda::CUresult result) const;

  // Prints only what failed: for calls that are not themselves under test.
  cuda::CUresult setup(const char* text, cuda::CUresult result) const;

  // In place of the call that begin() refused; the result is none of the driver's.
  cuda::CUresult skipped(const char* text) const;

  // "section    what = value". Values that differ from card to card are for the caller to mask.
  void value(const char* what, bool value) const;
  void value(const char* what, const char* text) const;
  void value(const char* what, const std::string& text) const;
  void value(const char* what, cuda::CUresult result) const;
  void value(const char* what, long long number) const;
  void value(const char* what, unsigned long long number) const;
  void value(const char* what, int number) const { value(what, static_cast<long long>(number)); }
  void value(const char* what, unsigned number) const {
    value(what, static_cast<unsigned long long>(number));
  }
  void value(const char* what, unsigned long number) const {
    value(what, static_cast<unsigned long long>(number));
  }
  void value(const char* what, double number) const;

  // "section  -- text", to tell what the lines below are about.
  void heading(const char* text) const;

  // Runs this program again as `--helper section name arguments...` and prints its lines here: for
  // what has to happen in another process. A helper that a signal ended is reported in a line.
  void helper(const char* name, const std::vector<std::string>& arguments = {}) const;

 private:
  void line(const std::string& text) const;

  const Driver& driver_;
  std::string section_;
  std::string program_;
  Skips skips_;
  int progress_;
  mutable unsigned calls_ = 0;
};

// "CUDA_ERROR_...", "missing" for kMissing, or the number.
std::string text_of(cuda::CUresult result);

}  // namespace nvshare::conformance

// Calls a function of the driver by its symbol, without printing.
#define QUIET(symbol, ...)                                                                 \
  (run.begin() ? run.driver().function<::nvshare::cuda::FunctionId::symbol>()(__VA_ARGS__) \
               : run.skipped(#symbol "(" #__VA_ARGS__ ")"))

// The same, and prints the call as it stands in the source.
#define CALL(symbol, ...)                                                                    \
  (run.begin()                                                                               \
       ? run.call(#symbol "(" #__VA_ARGS__ ")",                                              \
                  run.driver().function<::nvshare::cuda::FunctionId::symbol>()(__VA_ARGS__)) \
       : run.skipped(#symbol "(" #__VA_ARGS__ ")"))

// The same, with what the text of the call does not show.
#define CALL_WHERE(note, symbol, ...)                                                        \
  (run.begin()                                                                               \
       ? run.call(#symbol "(" #__VA_ARGS__ ") where " note,                                  \
                  run.driver().function<::nvshare::cuda::FunctionId::symbol>()(__VA_ARGS__)) \
       : run.skipped(#symbol "(" #__VA_ARGS__ ") where " note))

// The same for what a section merely needs: prints only when it fails.
#define SETUP(symbol, ...) run.setup(#symbol "(" #__VA_ARGS__ ")", QUIET(symbol, __VA_ARGS__))
