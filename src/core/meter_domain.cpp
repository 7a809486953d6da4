#include "core/meter_domain.h"

#include <algorithm>

#include "core/compute_engine.h"

namespace nvshare::core {

MeterDomain::MeterDomain(std::uint64_t number, Share* of, Time now)
    : id(number), owner(of), began(now) {
  enter_outer(now);
}

MeterLevel& MeterDomain::make_level(int number) {
  auto& made = levels[static_cast<std::size_t>(number)];
  made = std::make_unique<MeterLevel>();
  made->balance_at = began;
  return *made;
}

// --- the clock ---------------------------------------------------------------------------------

void MeterDomain::follow_outer(Time now) {
  caught_up_at = now;
  MeterDomain* around = outer();
  if (around == nullptr) return;
  around->catch_up(now);
  const Fixed passed = around->clock - outer_mark;
  clock += (passed * rate) >> kFixedBits;
  outer_mark += passed;
}

Fixed MeterDomain::clock_now() const {
  const MeterDomain* around = outer();
  if (around == nullptr) return clock;
  return clock + (((around->clock_now() - outer_mark) * rate) >> kFixedBits);
}

void MeterDomain::enter_outer(Time now) {
  MeterDomain* around = outer();
  if (around == nullptr) return;
  around->catch_up(now);
  outer_mark = around->clock;
  caught_up_at = now;
  note_due();
}

void MeterDomain::leave_outer(Time now) {
  catch_up(now);
  if (!due) return;
  outer()->inside.erase(*due);
  due.reset();
  outer()->note_due();
}

void MeterDomain::apply_load(int best_effort_percent, Time now) {
  changed = false;
  catch_up(now);
  const int most = room(best_effort_percent);
  // A clock that stands still would never refill anything, and others divide by its rate.
  rate =
      limited_sum > most ? std::max<Fixed>(1, divided(kOneFixed * most, limited_sum)) : kOneFixed;
  note_due();
}

int MeterDomain::entitled() const {
  const int most = capacity() * 100;
  return unlimited_active > 0 ? most : std::min(most, limited_sum);
}

Fixed MeterDomain::whole_rate() const {
  const MeterDomain* around = outer();
  return around == nullptr ? rate : (rate * around->whole_rate()) >> kFixedBits;
}

Fixed MeterDomain::first_due() const {
  const Fixed own = throttled.empty() ? kNever : throttled.begin()->at;
  return inside.empty() ? own : std::min(own, inside.begin()->at);
}

Duration MeterDomain::until(Fixed refill) const {
  Fixed left = std::max<Fixed>(0, refill - clock_now());
  const MeterDomain* around = outer();
  if (around == nullptr) return wait_of((left + rate - 1) / rate);
  left = ((left << kFixedBits) + rate - 1) / rate;
  return around->until(around->clock_now() + left);
}

void MeterDomain::note_due() {
  MeterDomain* around = outer();
  if (around == nullptr) return;
  const Fixed first = first_due();
  if (first == kNever) {
    if (!due) return;
    around->inside.erase(*due);
    due.reset();
  } else {
    const Fixed left = std::max<Fixed>(0, first - clock);
    const Fixed at =
        around->clock + (rate == kOneFixed ? left : ((left << kFixedBits) + rate - 1) / rate);
    if (due && (*due)->at == at) return;
    due = due ? moved(around->inside, *due, at) : around->inside.insert({at, id, this}).first;
  }
  around->note_due();
}

// --- the run queue -----------------------------------------------------------------------------

void MeterDomain::note_unlimited_held(int number, Fixed refill) {
  level(number).unlimited_held += refill;
  held |= std::uint32_t{1} << number;
}

void MeterDomain::enqueue(Share& share, MeterTier tier, int number, Time now) {
  MeterLevel& in = level(number);
  if (in.empty() && in.emptied_at != now) in.waiting_since = now;
  share.meter.place = in.queue[tier].insert({share.meter.vtime, share.seq, &share}).first;
  occupied |= std::uint32_t{1} << number;
  share.meter.level = number;
  share.meter.runnable = true;
  ++waiting[tier];
}

void MeterDomain::add_virtual_time(Share& share, MeterTier tier, VirtualTime more) {
  share.meter.vtime += more;
  if (!share.meter.runnable) return;
  ShareTimes& queue = level(share.meter.level).queue[tier];
  share.meter.place = moved(queue, share.meter.place, share.meter.vtime);
}

void MeterDomain::dequeue(Share& share, MeterTier tier, Time now) {
  MeterLevel& in = level(share.meter.level);
  in.queue[tier].erase(share.meter.place);
  share.meter.runnable = false;
  --waiting[tier];
  if (!in.empty()) return;
  in.emptied_at = now;
  occupied &= ~(std::uint32_t{1} << share.meter.level);
}

}  // namespace nvshare::core
