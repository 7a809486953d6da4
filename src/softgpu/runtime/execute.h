#pragma once

#include "softgpu/runtime/call.h"

// From tasks to the card: how long each takes there and what it does here.
namespace nvshare::softgpu {

// Appends to `ops` what the task amounts to, for the context. Event tasks and child graphs are not
// here: they are about order, not about work.
void append_ops(Runtime& rt, const std::shared_ptr<Context>& context, const Task& task,
                std::vector<Op>& ops);

// An operation that marks the event as complete; counts the record.
Op record_op(Runtime& rt, const std::shared_ptr<Context>& context,
             const std::shared_ptr<Event>& event);
// An operation that holds its lane until another process's event is complete.
Op foreign_wait_op(Runtime& rt, const std::shared_ptr<Context>& context,
                   const std::shared_ptr<Event>& event);

// Submits the task to `lane` behind `deps`. Returns where it ends.
LanePoint submit_task(Call& call, const std::shared_ptr<Context>& context, int lane,
                      const Task& task, std::vector<LanePoint> deps);

// What new work in the stream has to wait for besides the stream itself: the legacy default stream
// and the streams that it blocks.
std::vector<LanePoint> implicit_deps(Runtime& rt, const Context& context, const Stream& stream);

// Reads or writes with the device's rights. False: not mapped for it. With the lock.
bool device_read(Runtime& rt, int device, std::uint64_t address, void* to, std::size_t bytes);
bool device_write(Runtime& rt, int device, std::uint64_t address, const void* from,
                  std::size_t bytes);

}  // namespace nvshare::softgpu
