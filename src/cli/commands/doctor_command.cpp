#include <ostream>

#include "cli/commands/commands.h"
#include "cli/commands/control_session.h"
#include "cli/commands/doctor.h"

namespace nvshare::cli {
namespace {

int run(const Arguments& arguments, Streams streams) {
  const auto findings = examine();
  streams.out << (arguments.has("json") ? findings_json(findings)
                                        : findings_text(findings, wants_colour()));
  return has_problem(findings) ? kFailed : kGood;
}

}  // namespace

Command doctor_command() {
  CommandSpec spec;
  spec.name = "doctor";
  spec.summary = "Find out whether everything is in place, and what to do";
  spec.options = {{"json", 'j', "", "for programs: {\"healthy\", \"findings\"}"}};
  spec.more =
      "Looks at what is installed, the driver, the scheduler (a private one is started where\n"
      "there is none), the host memory for swapping, whether a program really takes part, and\n"
      "who uses a GPU outside nvshare. The exit code is 0 when nothing is a problem, else 1.\n\n"
      "examples:\n"
      "  nvshare doctor\n"
      "  nvshare softgpu -- nvshare doctor";
  return {spec, run};
}

}  // namespace nvshare::cli
