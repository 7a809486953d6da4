#include "softgpu/runtime/execute.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nvshare::softgpu {
namespace {

constexpr double kThreadsAtOnce = 132.0 * 2048;
constexpr double kCopyWidth = 0.125;  // copies within the device leave room for kernels
constexpr std::size_t kLetGoFrom = 256 * 1024;

double nanoseconds(double bytes, Bytes per_second) {
  return bytes * 1e9 / static_cast<double>(per_second.count);
}

std::vector<std::uint64_t> values_of(const KernelTask& task) {
  std::vector<std::uint64_t> values;
  for (std::size_t i = 0; i < task.function->params.size(); ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, task.params.data() + task.function->offsets[i],
                size_of(task.function->params[i]));
    values.push_back(value);
  }
  return values;
}

// Whether bytes there may vanish without CUDA being told.
bool is_unsafe(Runtime& rt, std::uint64_t address) {
  const Allocation* allocation = rt.addresses.find(address);
  return allocation != nullptr && allocation->kind == MemoryKind::kHostRegistered;
}

CUresult run_kernel(Runtime& rt, Lock& lock, int device, const KernelTask& task,
                    const std::vector<std::uint64_t>& values) {
  std::size_t since_pause = 0;
  const auto breathe = [&](std::size_t bytes) {
    since_pause += bytes;
    if (since_pause < kLetGoFrom * 4) return;
    since_pause = 0;
    lock.unlock();
    lock.lock();
  };
  const KernelMemory memory{[&](std::uint64_t address, void* to, std::size_t bytes) {
                              breathe(bytes);
                              return device_read(rt, device, address, to, bytes);
                            },
                            [&](std::uint64_t address, const void* from, std::size_t bytes) {
                              breathe(bytes);
                              return device_write(rt, device, address, from, bytes);
                            }};
  return task.function->builtin->run(memory, task.function->params, values) == KernelOutcome::kDone
             ? CUDA_SUCCESS
             : CUDA_ERROR_ILLEGAL_ADDRESS;
}

void append(Runtime& rt, const std::shared_ptr<Context>& context, const KernelTask& task,
            std::vector<Op>& ops) {
  const auto values = values_of(task);
  Op op;
  op.work = Work::kCompute;
  op.device = context->device;
  const Builtin& builtin = *task.function->builtin;
  op.amount = static_cast<double>(rt.config.kernel_time.count()) + builtin.duration(values) +
              nanoseconds(builtin.bytes(task.function->params, values), rt.config.bandwidth);
  if (rt.fault_due(rt.config.hang_kernel, rt.kernels_launched)) op.amount = HUGE_VAL;
  double threads = 1;
  for (const unsigned size : task.grid) threads *= size;
  for (const unsigned size : task.block) threads *= size;
  op.width = std::clamp(threads / kThreadsAtOnce, 1e-6, 1.0);
  op.effect = [device = context->device, task, values](Runtime& runtime, Lock& lock) {
    return run_kernel(runtime, lock, device, task, values);
  };
  op.context = context;
  ops.push_back(std::move(op));
}

// One stretch of bytes. Host memory that CUDA does not know is touched with care.
bool move_bytes(std::uint64_t to, bool to_unsafe, std::uint64_t from, bool from_unsafe,
                std::size_t bytes) {
  void* target = reinterpret_cast<void*>(to);
  const void* source = reinterpret_cast<const void*>(from);
  if (to_unsafe) return safe_write(target, source, bytes);
  if (from_unsafe) return safe_read(target, source, bytes);
  std::memmove(target, source, bytes);
  return true;
}

bool side_is_unsafe(Runtime& rt, const CopySide& side) {
  if (side.type == CU_MEMORYTYPE_ARRAY) return false;
  return !rt.addresses.known(side.base) || is_unsafe(rt, side.base);
}

// What a side spans, from its first byte to its last.
std::uint64_t span_of(const CopyTask& task, const CopySide& side) {
  return (task.depth - 1) * side.slice + (task.height - 1) * side.pitch + task.width;
}

// The device uses these bytes: managed memory comes to it.
void bring(Runtime& rt, int device, std::uint64_t address, std::uint64_t bytes) {
  const Allocation* allocation = rt.addresses.find(address);
  if (allocation == nullptr || allocation->kind != MemoryKind::kManaged) return;
  rt.residence.use(*rt.segment, device, *allocation, address, bytes);
}

CUresult run_copy(Runtime& rt, Lock& lock, int device, const CopyTask& task) {
  if (task.width == 0 || task.height == 0 || task.depth == 0) return CUDA_SUCCESS;
  for (const CopySide* side : {&task.from, &task.to}) {
    if (side->type == CU_MEMORYTYPE_DEVICE &&
        !rt.addresses.covers(side->base, span_of(task, *side))) {
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    bring(rt, device, side->base, span_of(task, *side));
  }
  const std::uint64_t from =
      task.staged ? reinterpret_cast<std::uint64_t>(task.staged->data()) : task.from.base;
  const bool to_unsafe = side_is_unsafe(rt, task.to);
  const bool from_unsafe = !task.staged && side_is_unsafe(rt, task.from);
  const bool long_one = task.bytes() >= static_cast<double>(kLetGoFrom);
  if (long_one) lock.unlock();
  bool good = true;
  const bool flat = task.height == 1 && task.depth == 1;
  if (flat) {
    good = move_bytes(task.to.base, to_unsafe, from, from_unsafe, task.width);
  } else {
    for (std::size_t z = 0; z < task.depth && good; ++z) {
      for (std::size_t y = 0; y < task.height && good; ++y) {
        good =
            move_bytes(task.to.base + z * task.to.slice + y * task.to.pitch, to_unsafe,
                       from + z * task.from.slice + y * task.from.pitch, from_unsafe, task.width);
      }
    }
  }
  if (long_one) lock.lock();
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void append(Runtime& rt, const std::shared_ptr<Context>& context, const CopyTask& task,
            std::vector<Op>& ops) {
  Op op;
  op.device = context->device;
  op.context = context;
  const bool from_host = task.from.type == CU_MEMORYTYPE_HOST;
  const bool to_host = task.to.type == CU_MEMORYTYPE_HOST;
  if (from_host != to_host) {
    const CopySide& host = from_host ? task.from : task.to;
    const Bytes speed = host.pinned ? rt.config.pinned : rt.config.pageable;
    op.work = from_host ? Work::kCopyIn : Work::kCopyOut;
    op.amount = task.bytes();
    op.width = static_cast<double>(speed.count) / 1e9 / static_cast<double>(rt.config.slow_link);
  } else if (!from_host) {
    op.work = Work::kCompute;
    op.amount = nanoseconds(2 * task.bytes(), rt.config.bandwidth);
    op.width = kCopyWidth;
  }
  op.effect = [task, device = op.device](Runtime& runtime, Lock& lock) {
    return run_copy(runtime, lock, device, task);
  };
  if (rt.fault_due(rt.config.fail_copy, rt.copies)) {
    op.effect = [](Runtime&, Lock&) { return CUDA_ERROR_LAUNCH_FAILED; };
  }
  ops.push_back(std::move(op));
}

CUresult run_memset(Runtime& rt, Lock& lock, int device, const CUDA_MEMSET_NODE_PARAMS& set) {
  const std::uint64_t row = set.width * set.elementSize;
  if (row == 0 || set.height == 0) return CUDA_SUCCESS;
  if (!rt.addresses.covers(set.dst, (set.height - 1) * set.pitch + row)) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  bring(rt, device, set.dst, (set.height - 1) * set.pitch + row);
  std::vector<unsigned char> line(std::min<std::uint64_t>(row, 64 * 1024));
  for (std::size_t at = 0; at < line.size(); at += set.elementSize) {
    std::memcpy(line.data() + at, &set.value, set.elementSize);
  }
  const bool careful = is_unsafe(rt, set.dst);
  lock.unlock();
  bool good = true;
  for (std::size_t y = 0; y < set.height && good; ++y) {
    for (std::uint64_t x = 0; x < row && good; x += line.size()) {
      good = move_bytes(set.dst + y * set.pitch + x, careful,
                        reinterpret_cast<std::uint64_t>(line.data()), false,
                        std::min<std::uint64_t>(line.size(), row - x));
    }
  }
  lock.lock();
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void append(Runtime& rt, const std::shared_ptr<Context>& context, const MemsetTask& task,
            std::vector<Op>& ops) {
  Op op;
  op.work = Work::kCompute;
  op.device = context->device;
  op.context = context;
  const auto& set = task.params;
  op.amount = nanoseconds(
      static_cast<double>(set.width) * set.elementSize * static_cast<double>(set.height),
      rt.config.bandwidth);
  op.width = kCopyWidth;
  op.effect = [set, device = op.device](Runtime& runtime, Lock& lock) {
    return run_memset(runtime, lock, device, set);
  };
  ops.push_back(std::move(op));
}

// Takes the time that the bytes take over the link which are not there yet.
void append(Runtime& rt, const std::shared_ptr<Context>& context, const PrefetchTask& task,
            std::vector<Op>& ops) {
  Op op;
  op.context = context;
  op.device = task.device < 0 ? context->device : task.device;
  const Allocation* allocation = rt.addresses.find(task.address);
  const std::uint64_t away =
      rt.residence.missing(*rt.segment, op.device, *allocation, task.address, task.bytes);
  op.work = task.device < 0 ? Work::kCopyOut : Work::kCopyIn;
  op.amount = static_cast<double>(task.device < 0 ? task.bytes - std::min(away, task.bytes) : away);
  op.width =
      static_cast<double>(rt.config.pinned.count) / 1e9 / static_cast<double>(rt.config.slow_link);
  if (op.amount == 0) op.work = Work::kMarker;
  op.effect = [task](Runtime& runtime, Lock&) {
    const Allocation* there = runtime.addresses.find(task.address);
    if (there == nullptr || there->kind != MemoryKind::kManaged) return CUDA_SUCCESS;
    if (task.device < 0) {
      runtime.residence.leave(*runtime.segment, *there, task.address, task.bytes);
    } else {
      runtime.residence.use(*runtime.segment, task.device, *there, task.address, task.bytes);
    }
    return CUDA_SUCCESS;
  };
  ops.push_back(std::move(op));
}

void append(Runtime&, const std::shared_ptr<Context>& context, const HostTask& task,
            std::vector<Op>& ops) {
  Op op;
  op.work = Work::kHost;
  op.device = context->device;
  op.context = context;
  op.call = [task](CUresult status) {
    if (task.callback != nullptr) {
      task.callback(task.stream, status, task.data);
    } else if (status == CUDA_SUCCESS) {
      task.function(task.data);  // not called once the context is broken, as the driver has it
    }
  };
  ops.push_back(std::move(op));
}

bool value_is_there(std::uint64_t value, std::uint64_t wanted, unsigned flags, bool wide) {
  switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return wide ? static_cast<std::int64_t>(value - wanted) >= 0
                  : static_cast<std::int32_t>(static_cast<std::uint32_t>(value) -
                                              static_cast<std::uint32_t>(wanted)) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return value == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (value & wanted) != 0;
    default:
      return (wide ? ~(value | wanted)
                   : std::uint64_t{static_cast<std::uint32_t>(~(value | wanted))}) != 0;
  }
}

Op wait_value_op(int device, const CUstreamBatchMemOpParams& params, bool wide) {
  Op op;
  op.work = Work::kHost;
  const auto wait = params.waitValue;
  op.ready = [device, wait, wide](Runtime& rt) {
    std::uint64_t value = 0;
    // What is not mapped any more will never change.
    if (!device_read(rt, device, wait.address, &value, wide ? 8 : 4)) return true;
    return value_is_there(value, wide ? wait.value64 : wait.value, wait.flags, wide);
  };
  return op;
}

Op write_value_op(int device, const CUstreamBatchMemOpParams& params, bool wide) {
  Op op;
  const auto write = params.writeValue;
  op.effect = [device, write, wide](Runtime& rt, Lock&) {
    const std::uint64_t value = wide ? write.value64 : write.value;
    return device_write(rt, device, write.address, &value, wide ? 8 : 4)
               ? CUDA_SUCCESS
               : CUDA_ERROR_ILLEGAL_ADDRESS;
  };
  return op;
}

void append(Runtime&, const std::shared_ptr<Context>& context, const MemOpTask& task,
            std::vector<Op>& ops) {
  for (const CUstreamBatchMemOpParams& params : task.operations) {
    Op op;
    switch (params.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        op = wait_value_op(context->device, params,
                           params.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        op = write_value_op(context->device, params,
                            params.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64);
        break;
      default:
        break;  // barriers: everything is in order anyway
    }
    op.device = context->device;
    op.context = context;
    ops.push_back(std::move(op));
  }
}

void append_marker(const std::shared_ptr<Context>& context, std::vector<Op>& ops) {
  Op op;
  op.device = context->device;
  op.context = context;
  ops.push_back(std::move(op));
}

}  // namespace

bool device_read(Runtime& rt, int device, std::uint64_t address, void* to, std::size_t bytes) {
  if (!rt.addresses.device_can(address, bytes, false, device)) return false;
  bring(rt, device, address, bytes);
  return move_bytes(reinterpret_cast<std::uint64_t>(to), false, address, is_unsafe(rt, address),
                    bytes);
}

bool device_write(Runtime& rt, int device, std::uint64_t address, const void* from,
                  std::size_t bytes) {
  if (!rt.addresses.device_can(address, bytes, true, device)) return false;
  bring(rt, device, address, bytes);
  return move_bytes(address, is_unsafe(rt, address), reinterpret_cast<std::uint64_t>(from), false,
                    bytes);
}

void append_ops(Runtime& rt, const std::shared_ptr<Context>& context, const Task& task,
                std::vector<Op>& ops) {
  std::visit(
      [&](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, KernelTask> || std::is_same_v<T, CopyTask> ||
                      std::is_same_v<T, MemsetTask> || std::is_same_v<T, HostTask> ||
                      std::is_same_v<T, MemOpTask> || std::is_same_v<T, PrefetchTask>) {
          append(rt, context, one, ops);
        } else {
          append_marker(context, ops);
        }
      },
      task);
}

Op record_op(Runtime& rt, const std::shared_ptr<Context>& context,
             const std::shared_ptr<Event>& event) {
  Op op;
  op.device = context->device;
  op.context = context;
  event->recorded = true;
  event->capture = nullptr;
  event->capture_deps.clear();
  const std::uint64_t record = ++event->records;
  if (event->ipc >= 0) {
    Segment::Lock card_lock(*rt.segment);
    rt.segment->card().events[event->ipc].recorded += 1;
  }
  op.done = [&rt, event, record](Nanos finished_at) {
    if (record >= event->finished) {
      event->finished = record;
      event->time = finished_at;
    }
    if (event->ipc >= 0) {
      Segment::Lock card_lock(*rt.segment);
      IpcEvent& shared = rt.segment->card().events[event->ipc];
      shared.done += 1;
      shared.finished_at = finished_at;
    }
  };
  return op;
}

Op foreign_wait_op(Runtime& rt, const std::shared_ptr<Context>& context,
                   const std::shared_ptr<Event>& event) {
  Op op;
  op.work = Work::kHost;
  op.device = context->device;
  op.context = context;
  std::uint64_t wanted = 0;
  {
    Segment::Lock card_lock(*rt.segment);
    wanted = rt.segment->card().events[event->ipc].recorded;
  }
  op.ready = [event, wanted](Runtime& runtime) {
    Segment::Lock card_lock(*runtime.segment);
    const IpcEvent& shared = runtime.segment->card().events[event->ipc];
    // The one that recorded it may be dead: then nobody will ever complete it.
    const bool alone = (shared.holders & ~bit(runtime.segment->slot())) == 0;
    return shared.done >= wanted || alone;
  };
  return op;
}

LanePoint submit_task(Call& call, const std::shared_ptr<Context>& context, int lane,
                      const Task& task, std::vector<LanePoint> deps) {
  Runtime& rt = call.rt;
  std::vector<Op> ops;
  std::shared_ptr<Event> recorded;
  if (const auto* record = std::get_if<EventRecordTask>(&task)) {
    ops.push_back(record_op(rt, context, record->event));
    recorded = record->event;
  } else if (const auto* wait = std::get_if<EventWaitTask>(&task)) {
    if (wait->event->imported) {
      ops.push_back(foreign_wait_op(rt, context, wait->event));
    } else {
      if (wait->event->recorded) deps.push_back(wait->event->point);
      append_marker(context, ops);
    }
  } else {
    append_ops(rt, context, task, ops);
    if (rt.fault_due(rt.config.lose_device, rt.work_started)) rt.lose_device(context->device);
  }
  LanePoint end;
  for (Op& op : ops) {
    end = rt.submit(call.lock, lane, std::move(op), deps);
    deps.clear();
  }
  if (recorded) recorded->point = end;
  return end;
}

std::vector<LanePoint> implicit_deps(Runtime& rt, const Context& context, const Stream& stream) {
  std::vector<LanePoint> deps;
  if ((stream.flags & CU_STREAM_NON_BLOCKING) != 0) return deps;
  const auto add = [&](const Stream& other) {
    if (&other != &stream && !rt.finished(other.last)) deps.push_back(other.last);
  };
  if (!stream.legacy) {
    if (context.legacy) add(*context.legacy);
    return deps;
  }
  for (const auto& other : context.streams) {
    if ((other->flags & CU_STREAM_NON_BLOCKING) == 0) add(*other);
  }
  for (const auto& [thread, other] : context.per_thread) add(*other);
  return deps;
}

}  // namespace nvshare::softgpu
