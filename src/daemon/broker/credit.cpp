#include "daemon/broker/credit.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace nvshare::daemon {
namespace {

constexpr Bytes kMostLent = mib(256);
constexpr std::int64_t kPart = 64;  // of a small GPU: that part of it

Bytes lent_on(const GpuRecord& gpu) {
  return std::min(kMostLent, Bytes{gpu.total.count / kPart});
}

std::uint64_t to_count(Bytes bytes) {
  return static_cast<std::uint64_t>(bytes.count);
}

wire::Credit& shared_with(const ClientRecord& client, bool movable) {
  return movable ? client.page->movable_credit : client.page->pinned_credit;
}

}  // namespace

// --- what has become of it ---------------------------------------------------------------------

void Credit::settle(Time now) {
  for (auto& [id, client] : clients_) settle(client, now);
}

void Credit::settle(ClientRecord& client, Time now) {
  settle_credit(client, now);
  settle_rounding(client, now);
}

void Credit::settle_credit(ClientRecord& client, Time now) {
  for (const bool movable : {true, false}) {
    wire::Credit& shared = shared_with(client, movable);
    if (client.memory.credit(movable).given) {
      note_credit(client, movable, shared.bytes.load(), now);
    } else if (shared.bytes.load() != 0) {
      // Freed into it while it was taken back: wire::give().
      note_credit(client, movable, shared.bytes.exchange(0), now);
      client.memory.credit(movable).left = {};
    }
  }
}

// Looked at before a request is decided: the program has written what its memory takes with that.
// Credit was lent beside less rounding, so it is taken back where both do not fit. Otherwise the
// core might refuse to book what is allocated on it.
void Credit::settle_rounding(ClientRecord& client, Time now) {
  const std::uint64_t said = client.page->program.rounding.load();
  const auto most = static_cast<std::uint64_t>(core::kMostMemory.count);
  const Bytes before = client.memory.rounding();
  if (!client.memory.set_rounding(Bytes{static_cast<std::int64_t>(std::min(said, most))})) return;
  const Bytes more = client.memory.rounding() - before;
  if (more > Bytes{} && more > room_to_lend(client)) revoke_all(client.gpu, now);
  const auto taken = step(core::MemoryRounded{client.id, client.memory.rounding()}, now);
  if (!taken) log_.error("memory_not_booked", {{"reason", taken.error().message}});
}

// There is so much left, says the page, which the client can write what it wants to.
void Credit::note_credit(ClientRecord& client, bool movable, std::uint64_t said, Time now) {
  const auto most = static_cast<std::uint64_t>(core::kMostMemory.count);
  const Bytes left{static_cast<std::int64_t>(std::min(said, most))};
  const Bytes taken = client.memory.look_at_credit(movable, left);
  if (taken == Bytes{}) return;
  if (taken > Bytes{}) {
    book_taken(client, taken, movable, now);
  } else {
    accounts_.book(client, now);
  }
  accounts_.show_allocated(client.tenant, client.gpu);
}

// Never refused, for it was within all limits when it was lent, and since. Should it be anyway, it
// counts as what the client has.
void Credit::book_taken(ClientRecord& client, Bytes bytes, bool movable, Time now) {
  core::MemoryChanged asked = client.memory.grown(client.id, bytes, {}, movable, false);
  asked.resident = core_.view(client.id)->resident;
  auto taken = desk_.decide(asked, now);
  client.memory.grow(bytes, {}, movable, true);
  if (taken) desk_.follow(std::move(*taken), now);
  const core::ClientView view = *core_.view(client.id);
  const core::MemoryAccount& memory = client.memory;
  if (view.allocated == memory.counted() && view.resident == memory.counted_resident()) return;
  log_.error("credit_not_booked", {{"client", client.id.value}, {"bytes", bytes.count}});
  const auto found = step(memory.found(client.id, false), now);
  if (!found) log_.error("memory_not_booked", {{"reason", found.error().message}});
}

// --- taking it back ----------------------------------------------------------------------------

void Credit::revoke(ClientRecord& client, Time now) {
  settle_credit(client, now);  // the client looks in its page for what the tenant has then
  for (const bool movable : {true, false}) {
    core::MemoryCredit& credit = client.memory.credit(movable);
    if (!credit.given) continue;
    credit.given = false;
    note_credit(client, movable, wire::revoke(shared_with(client, movable)), now);
    credit.left = {};
  }
}

void Credit::revoke_all(GpuId gpu, Time now) {
  for (const ClientId id : gpus_.at(gpu).clients) revoke(clients_.at(id), now);
}

void Credit::revoke_if_near(ClientRecord& client, Bytes bytes, Time now) {
  if (bytes > room_within_limits(client)) revoke(client, now);
  if (bytes > room_to_lend(client)) revoke_all(client.gpu, now);
}

// --- handing it out ----------------------------------------------------------------------------

// No other client below the same limits has credit.
Bytes Credit::room_within_limits(const ClientRecord& client) const {
  return core_.memory_room(client.id)->limit - client.memory.credit_left();
}

// On the client's GPU, beside what is lent there. Below 0 when the GPU is nearly full.
Bytes Credit::room_to_lend(const ClientRecord& client) const {
  Bytes room = core_.memory_room(client.id)->easily;
  for (const ClientId id : gpus_.at(client.gpu).clients) {
    room -= clients_.at(id).memory.credit_in_pages();
  }
  return room;
}

// Alone in its tenant and below every limit of a level, so that it knows what the tenant has and
// what is left under the limits; and with all of its memory in place, where it is to stay.
bool Credit::may_have_credit(const ClientRecord& client) const {
  const auto below = clients_below(tenants_, limited_level(tenants_, client.tenant));
  const auto here = std::count_if(below.begin(), below.end(),
                                  [&](ClientId id) { return clients_.at(id).gpu == client.gpu; });
  const core::ClientView view = *core_.view(client.id);
  const bool stops =
      view.state == core::ClientState::Stopping || view.state == core::ClientState::Overdue;
  return here == 1 && !stops && !client.asleep && !client.oversubscribes &&
         client.memory.orders().empty() && client.memory.beyond() == Bytes{} &&
         view.resident == client.memory.counted();
}

void Credit::lend(ClientRecord& client, bool movable) {
  const Bytes lent = lent_on(gpus_.at(client.gpu));
  const Bytes half{lent.count / 2};
  core::MemoryCredit& credit = client.memory.credit(movable);
  wire::Credit& shared = shared_with(client, movable);
  if (credit.given && credit.left > lent + half) {
    const std::uint64_t back = wire::withdraw(shared, to_count(credit.left - lent));
    credit.left -= Bytes{static_cast<std::int64_t>(back)};
  }
  if ((credit.given && credit.left >= half) || !may_have_credit(client)) return;
  const Bytes on_gpu = room_to_lend(client);
  const Bytes within = room_within_limits(client);
  if (std::min(on_gpu, within) < Bytes{}) return;
  // An allocation takes less than twice what it asks for (MemoryAccount::credit_in_pages).
  const Bytes room = std::min(movable ? Bytes{on_gpu.count / 2} : on_gpu, within);
  const Bytes more = std::clamp(lent - credit.left, Bytes{}, room);
  wire::hand_out(shared, to_count(more), to_count(lent + lent));
  credit.given = true;
  credit.left += more;
}

}  // namespace nvshare::daemon
