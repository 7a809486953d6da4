// Events: kinds, times, order.

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

void creating(Run& run) {
  CUevent event = nullptr;
  const unsigned good[] = {CU_EVENT_DEFAULT, CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING,
                           CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING};
  for (const unsigned flags : good) {
    run.value("flags", flags);
    CALL(cuEventCreate, &event, flags);
    CALL(cuEventDestroy_v2, event);
  }
  CALL(cuEventCreate, &event, CU_EVENT_INTERPROCESS);
  CALL(cuEventCreate, &event, 0x80);
  CALL(cuEventCreate, nullptr, 0);
  CALL(cuEventDestroy_v2, nullptr);
  CALL(cuEventQuery, nullptr);
  CALL(cuEventSynchronize, nullptr);
}

void never_recorded(Run& run) {
  const CUstream stream = new_stream(run);
  const CUevent event = new_event(run);
  const CUevent other = new_event(run);
  float milliseconds = -1;
  CALL(cuEventQuery, event);
  CALL(cuEventSynchronize, event);
  CALL(cuStreamWaitEvent, stream, event, 0);
  CALL(cuEventElapsedTime_v2, &milliseconds, event, other);
  CALL(cuEventElapsedTime, &milliseconds, event, other);
  SETUP(cuEventRecord, event, stream);
  SETUP(cuEventSynchronize, event);
  CALL(cuEventElapsedTime_v2, &milliseconds, event, other);
  CALL(cuEventElapsedTime_v2, &milliseconds, other, event);
}

void times(Run& run, const Kernels& kernels) {
  const CUstream stream = new_stream(run);
  const CUevent start = new_event(run);
  const CUevent end = new_event(run);
  const CUevent timeless = new_event(run, CU_EVENT_DISABLE_TIMING);
  float milliseconds = -1;
  CALL(cuEventRecord, start, stream);
  launch_spin(run, kernels, stream, 100);
  CALL(cuEventRecord, end, stream);
  CALL(cuEventRecord, timeless, stream);
  CALL(cuEventQuery, end);
  CALL(cuEventElapsedTime_v2, &milliseconds, start, end);
  CALL(cuEventElapsedTime, &milliseconds, start, end);
  CALL(cuEventSynchronize, end);
  CALL(cuEventQuery, end);
  CALL(cuEventElapsedTime_v2, &milliseconds, start, end);
  run.value("100 ms, within one percent or so", milliseconds > 99.5f && milliseconds < 103.f);
  CALL(cuEventElapsedTime_v2, &milliseconds, end, start);
  run.value("-100 ms, within one percent or so", milliseconds < -99.5f && milliseconds > -103.f);
  CALL(cuEventElapsedTime_v2, &milliseconds, start, start);
  run.value("milliseconds", static_cast<double>(milliseconds));
  SETUP(cuEventSynchronize, timeless);
  CALL(cuEventElapsedTime_v2, &milliseconds, start, timeless);
  CALL(cuEventElapsedTime_v2, &milliseconds, timeless, end);
  CALL(cuEventElapsedTime, &milliseconds, start, timeless);
  CALL(cuEventElapsedTime_v2, nullptr, start, end);
  CALL(cuEventElapsedTime_v2, &milliseconds, nullptr, end);
  CALL(cuEventElapsedTime_v2, &milliseconds, start, nullptr);
}

void order(Run& run, const Kernels& kernels) {
  const CUstream first = new_stream(run);
  const CUstream second = new_stream(run);
  const CUevent event = new_event(run);
  launch_spin(run, kernels, first, 100);
  CALL(cuEventRecord, event, first);
  CALL(cuStreamWaitEvent, second, event, 0);
  launch_spin(run, kernels, second, 1);
  CALL(cuStreamQuery, second);
  CALL(cuEventDestroy_v2, event);
  CALL(cuStreamSynchronize, second);
  CALL(cuStreamQuery, first);
  CALL(cuStreamWaitEvent, second, nullptr, 0);
  const CUevent another = new_event(run);
  CALL(cuStreamWaitEvent, second, another, 0x80);
  CALL(cuStreamWaitEvent, second, another, CU_EVENT_WAIT_EXTERNAL);
  CALL(cuEventRecord, nullptr, first);
  CALL(cuEventRecord, another, nullptr);
  CALL(cuEventSynchronize, another);
  CALL(cuEventRecord_ptsz, another, nullptr);
  CALL(cuEventSynchronize, another);
  CALL(cuEventRecordWithFlags, another, first, CU_EVENT_RECORD_DEFAULT);
  CALL(cuEventRecordWithFlags, another, first, CU_EVENT_RECORD_EXTERNAL);
  CALL(cuEventRecordWithFlags, another, first, 0x80);
  CALL(cuEventSynchronize, another);
}

// Recording again moves the event; who waited before is not moved with it.
void recorded_again(Run& run, const Kernels& kernels) {
  const CUstream first = new_stream(run);
  const CUstream second = new_stream(run);
  const CUevent event = new_event(run);
  SETUP(cuEventRecord, event, first);
  SETUP(cuEventSynchronize, event);
  launch_spin(run, kernels, first, 100);
  SETUP(cuStreamWaitEvent, second, event, 0);
  CALL(cuEventRecord, event, first);
  CALL(cuEventQuery, event);
  CALL(cuStreamSynchronize, second);
  CALL(cuEventQuery, event);
  CALL(cuEventSynchronize, event);
  CALL(cuEventQuery, event);
}

}  // namespace

void events(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  creating(run);
  run.heading("never recorded");
  never_recorded(run);
  run.heading("times");
  times(run, kernels);
  run.heading("order");
  order(run, kernels);
  run.heading("recorded again");
  recorded_again(run, kernels);
}

}  // namespace nvshare::conformance
