#include "core/reason.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::core {
namespace {

std::string in_time(Duration wait) {
  return wait > Duration::zero() ? fmt::format("in {}", to_text(wait)) : std::string("now");
}

}  // namespace

std::string to_text(const Reason& r) {
  switch (r.why) {
    case Why::NoWork:
      return "has no work for the GPU";
    case Why::Running:
      return "runs";
    case Why::RunningAlone:
      return "runs, and nobody else wants the GPU";
    case Why::Stopping:
      return "was told to stop and is finishing what it has in flight";
    case Why::Paused:
      return "is paused; resume it to let it run";
    case Why::Asleep:
      return fmt::format("has slept for {}: nvshare wake, or its next launch, brings it back",
                         to_text(r.used));
    case Why::HeldAsleep:
      return fmt::format("has been held asleep for {}: nvshare wake brings it back",
                         to_text(r.used));
    case Why::WaitsForTurn:
      return r.count > 0 ? fmt::format("waits for its turn; {} before it", r.count)
                         : std::string("waits for its turn; it is next");
    case Why::BudgetSpent:
      return fmt::format("core limit reached: {} used of {}; again {}", to_text(r.used),
                         to_text(r.quota), in_time(r.wait));
    case Why::OverLimit:
      return fmt::format(
          "has used up its {} % of GPU time{}; again {}", r.count,
          r.used > Duration::zero() ? fmt::format(" ({} ahead)", to_text(r.used)) : "",
          in_time(r.wait));
    case Why::TenantOverdue:
      return "waits because another of its processes does not stop when told to";
    case Why::Overdue:
      return fmt::format("was told to stop {} ago and has not; it is charged for the time",
                         to_text(r.used));
    case Why::WaitsForMemory:
      return fmt::format("waits for {} of GPU memory ({} free); next switch {}", to_text(r.bytes),
                         to_text(r.free), in_time(r.wait));
    case Why::WaitsForHostMemory:
      return fmt::format(
          "waits for {} of GPU memory ({} free) until the host memory that others move to is "
          "there; next switch at the latest {}",
          to_text(r.bytes), to_text(r.free), in_time(r.wait));
    case Why::RoomIsMade:
      return fmt::format("waits for {} of GPU memory ({} free); room is being made",
                         to_text(r.bytes), to_text(r.free));
    case Why::WaitsForHolders:
      return fmt::format(
          "waits for {} of GPU memory ({} free) until those who hold it have stopped",
          to_text(r.bytes), to_text(r.free));
    case Why::MemoryComing:
      return fmt::format("its memory is on the way in, {} to go", to_text(r.bytes));
    case Why::MemoryCannotFit:
      return fmt::format(
          "needs {} of GPU memory, and at most {} can be made free beside what cannot move",
          to_text(r.bytes), to_text(r.free));
    case Why::OthersCannotLeave:
      return fmt::format(
          "needs {} of GPU memory, and at most {} can be made free: what others have has no place "
          "in host memory",
          to_text(r.bytes), to_text(r.free));
    case Why::MoveFailed:
      return fmt::format("waits for {} of GPU memory that could not be moved; tried again {}",
                         to_text(r.bytes), in_time(r.wait));
    case Why::SchedulingOff:
      return "scheduling is switched off";
    case Why::LeaseOver:
      return "its lease is over; it waits until it has another one, gives this one back, or no "
             "service holds or wants a lease on this GPU";
    case Why::OverMemoryLimit:
    case Why::OverMemoryLimitMovable:
      return fmt::format(
          "over the memory limit: {} used of {} allowed; new allocations are refused until it is "
          "below{}",
          to_text(r.bytes), to_text(r.free),
          r.why == Why::OverMemoryLimitMovable
              ? ", and its memory is moved out as soon as others need the room"
              : "");
    case Why::HasBudget:
      return "has work and budget";
    case Why::TurnOver:
      return "its turn is over and others wait";
    case Why::GivesWay:
      return "somebody with a better right to the GPU has work again";
    case Why::Rotation:
      return fmt::format("its time slice is over and a waiting client needs {} of memory",
                         to_text(r.bytes));
    case Why::LimitExceeded:
      return fmt::format("{} asked for, and {} left under the memory limit", to_text(r.bytes),
                         to_text(r.free));
    case Why::OwnLimitExceeded:
      return fmt::format("{} asked for, and {} left under NVSHARE_GPU_MEMORY_LIMIT",
                         to_text(r.bytes), to_text(r.free));
    case Why::LargerThanGpu:
      return fmt::format(
          "{} in all, and the GPU can give at most {} beside what contexts and libraries take "
          "(settings "
          "reserve_*); nvshare run --oversubscribe-self lets a program have more",
          to_text(r.bytes), to_text(r.free));
    case Why::LargerInPages:
      return fmt::format(
          "{} in whole pages of 2 MiB, which its allocations take, and the GPU can give at most {}",
          to_text(r.bytes), to_text(r.free));
    case Why::NoRoom:
      return fmt::format("{} more, and only {} of the GPU is free now", to_text(r.bytes),
                         to_text(r.free));
    case Why::NoHostMemory:
      return fmt::format(
          "{} of host memory would be needed for what does not fit the GPU then, and there can be "
          "{} (setting arena_limit, and what the machine has)",
          to_text(r.bytes), to_text(r.free));
    case Why::RoomPromised:
      return fmt::format(
          "{} more that cannot move, and beside what others must be able to bring back {} is left",
          to_text(r.bytes), to_text(r.free));
    case Why::Fits:
      return "its memory fits";
    case Why::NextInLine:
      return "is next in line and there is room";
    case Why::FillsGap:
      return "a smaller client can run in this room until its turn comes";
    case Why::Grew:
      return fmt::format("its memory grew and {} do not fit now", to_text(r.bytes));
    case Why::ReserveGrew:
      return "more processes use the GPU and leave less room";
    case Why::DropIgnored:
      return fmt::format("has not stopped {} after it was told to", to_text(r.used));
    case Why::MoveIgnored:
      return fmt::format("has not moved the {} of memory it was told to", to_text(r.bytes));
    case Why::Asked:
      return "it was asked for";
    case Why::KeptGpu:
      return "it was there before the scheduler was started again";
    case Why::OnlyGpu:
      return "there was no other to choose";
    case Why::IdleGpu:
      return "it was idle";
    case Why::LeastLoaded:
      return fmt::format("it had the least work, with {} program{}", r.count,
                         r.count == 1 ? "" : "s");
    case Why::HasRoom:
      return r.bytes.count > 0
                 ? fmt::format("its {} fit there, with {} free", to_text(r.bytes), to_text(r.free))
                 : fmt::format("it had {} free", to_text(r.free));
    case Why::MostFree:
      return fmt::format("{}, and it had the most free memory, {}",
                         r.bytes.count > 0
                             ? fmt::format("its {} fit on no GPU then", to_text(r.bytes))
                             : std::string("every GPU was full"),
                         to_text(std::max(r.free, Bytes{})));
    case Why::SampleDue:
      return "its use is due to be metered";
    case Why::ModeChanged:
      return "clients take turns from now on";
    case Why::LimitsChanged:
      return "its limits were changed";
    case Why::PutToSleep:
      return "was put to sleep";
    case Why::IdleTooLong:
      return fmt::format("had no work for {} (setting idle_out)", to_text(r.quota));
    case Why::Woken:
      return "was woken";
    case Why::WokenByWork:
      return "asked for the GPU and woke its tenant";
  }
  return "?";
}

}  // namespace nvshare::core
