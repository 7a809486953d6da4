#pragma once

#include "softgpu/runtime/call.h"

// Stream capture: work that is recorded into a graph instead of being done.
namespace nvshare::softgpu {

void invalidate(Capture& capture);

// Fails, and spoils the capture, when a stream that the legacy stream would wait for is captured.
CUresult no_implicit_capture(Context& context);

// Adds the task as a node behind what the stream has captured so far.
CUresult capture_task(Call& call, const std::shared_ptr<Stream>& stream, Task task);
// A wait for an event where the stream, the event or both are in a capture.
CUresult capture_wait(Call& call, const std::shared_ptr<Stream>& stream,
                      const std::shared_ptr<Event>& event);
// The event marks this point of the stream's capture.
void capture_record(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event);

CUresult begin_capture(Call& call, const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode,
                       std::shared_ptr<Graph> into, std::vector<Node*> deps);
CUresult end_capture(Call& call, const std::shared_ptr<Stream>& stream,
                     std::shared_ptr<Graph>& graph);

}  // namespace nvshare::softgpu
