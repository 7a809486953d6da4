#include "sim/process.h"

#include <algorithm>

namespace nvshare::sim {

// A kernel that has begun is played to its end.
Work Process::to_kernel_end(Work point) const {
  const Work kernel = to_work(spec->work.kernel);
  if (kernel == 0) return point;
  const Work into = point % kernel;
  return into == 0 ? point : point + kernel - into;
}

std::optional<Work> Process::until_next_stop() const {
  std::optional<Work> stop;
  const auto at = [&](Work point) { stop = stop ? std::min(*stop, point) : point; };
  if (spec->work.total) at(to_work(*spec->work.total));
  if (kind == WorkloadKind::Bursty) at(burst_end);
  if (kind != WorkloadKind::Silent) {
    if (dropping) at(to_kernel_end(done));
    if (budget) at(to_kernel_end(started_at + std::max<Work>(to_work(*budget), 1)));
  }
  if (!stop) return std::nullopt;
  return std::max<Work>(0, *stop - done);
}

Duration Process::until_next_burst(Time now) const {
  if (!spec->work.every) return spec->work.gap;
  const Time due = arrived + static_cast<Duration::rep>(begun) * *spec->work.every;
  return std::max(Duration{}, due - now);
}

void Process::note_wait(Time now) {
  const Duration waited = now - wants_since;
  report.wait += waited;
  report.longest_wait = std::max(report.longest_wait, waited);
}

void Process::note_run(Time now, bool keep_span) {
  report.run += now - granted_at;
  if (!keep_span) return;
  if (!report.spans.empty() && report.spans.back().to == granted_at) {
    report.spans.back().to = now;
  } else {
    report.spans.push_back({granted_at, now});
  }
}

}  // namespace nvshare::sim
