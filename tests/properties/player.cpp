#include "player.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "text.h"

namespace nvshare::properties {

using namespace core;

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::size_t kLongest = 2000;  // events; enough for what one run can tell
constexpr Time kEnd{24h * 365 * 100};   // debts can last longer than there are numbers for times

}  // namespace

Config random_config(Dice& dice) {
  Config c;
  c.policy = dice.pick({ComputePolicy::Metered, ComputePolicy::Wall, ComputePolicy::Weighted,
                        ComputePolicy::Hybrid, ComputePolicy::Coordinated, ComputePolicy::Dynamic,
                        ComputePolicy::Fair, ComputePolicy::Metered});
  c.share_mode = dice.pick({ShareMode::Auto, ShareMode::Turns, ShareMode::Concurrent});
  c.window = dice.pick<Duration>({2s, 100ms, 1s});
  c.turn = dice.pick<Duration>({5ms, 100us, 50ms});
  c.fair_turn = dice.pick<Duration>({50ms, 1ms});
  c.burst_window = dice.pick<Duration>({500ms, 10ms});
  c.carryover_percent = dice.pick({100, 100, 50, 0});
  c.tail_billing_percent = dice.pick({100, 100, 100, 50, 0});
  c.best_effort_percent = dice.pick({5, 1, 50});
  c.sample_interval = dice.pick<Duration>({100ms, 1ms, 10ms});
  c.drop_timeout = dice.pick<Duration>({2s, 10ms, 100ms});
  c.end_overdue = dice.one_in(2);
  c.reserve_percent = dice.pick({10, 0});
  c.reserve_base = dice.pick<Bytes>({mib(500), mib(0)});
  c.reserve_per_process = dice.pick<Bytes>({mib(300), mib(0), mib(77)});
  c.quantum_mode = dice.pick({QuantumMode::Auto, QuantumMode::Fixed});
  c.quantum_fixed = dice.pick<Duration>({1s, 10ms, 60s});
  c.quantum_multiplier = dice.pick({5, 1, 1000});
  c.quantum_min = dice.pick<Duration>({2s, 10ms});
  c.quantum_max = std::max(c.quantum_min, dice.pick<Duration>({300s, 100ms, 2s}));
  c.link_per_second = dice.pick<Bytes>({gib(1), gib(50), mib(1)});
  c.ageing = dice.pick<Duration>({1s, 1ms});
  c.idle_out = dice.pick<Duration>({0s, 0s, 2s, 30ms});
  return c;
}

Limits random_limits(Dice& dice) {
  Limits limits;
  limits.core_percent = dice.pick({100, 50, 30, 100, 80, 1, 10, 99});
  if (dice.one_in(4)) limits.memory = dice.pick<Bytes>({gib(1), gib(4), mib(300)});
  limits.priority = dice.pick({0, 0, 0, 5, -5, kHighestPriority, kLowestPriority});
  return limits;
}

Player::Player(Dice dice)
    : dice_(dice), config_(random_config(dice_)), core_(config_, Time{}), watch_(config_, Time{}) {
  tell(GpuAdded{GpuId{0}, dice_.pick<Bytes>({gib(16), gib(4), gib(1)})});
  for (std::uint64_t t = 0; t < 3; ++t) {
    std::optional<TenantId> parent;
    if (t > 0 && dice_.one_in(3)) parent = TenantId{dice_.below(static_cast<std::uint32_t>(t))};
    tell(TenantAdded{TenantId{t}, "t", random_limits(dice_), parent});
  }
  for (std::uint64_t c = 1 + dice_.below(6); c > 0; --c) {
    tell(ClientAdded{ClientId{c}, TenantId{dice_.below(3)}, GpuId{0}});
    tell(MemoryChanged{ClientId{c}, some_bytes(), {}, {}});
    tell(WorkRequested{ClientId{c}});
  }
}

bool Player::tell(const Event& event, Time at) {
  const auto result = core_.step(event, at);
  Told& told = told_.emplace_back(Told{event, at, static_cast<bool>(result), {}});
  if (result) {
    for (const Decision& decision : *result) told.decisions.push_back(to_line(decision));
  }
  watch_.after(event, at, result, core_);
  return told.taken;
}

std::string Player::story() const {
  std::string text = fmt::format("policy {}\n", core::name_of(config_.policy));
  for (const Told& told : told_) {
    text += fmt::format("{:>14}ns {} {}\n", told.at.time_since_epoch().count(),
                        told.taken ? "     " : "(no) ", to_line(told.event));
    for (const std::string& decision : told.decisions)
      text += "                        -> " + decision + "\n";
  }
  return text;
}

void Player::play() {
  while (!dice_.over() && watch_.broken().empty() && told_.size() < kLongest) one_thing();
}

void Player::one_thing() {
  switch (dice_.below(32)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return pass_time();
    case 4:
    case 5:
    case 6:
    case 7:
      return wake_up();
    case 8:
      return change_the_machine();
    case 9:
    case 10:
      return change_tenants();
    case 11:
    case 12:
    case 13:
      return change_clients();
    case 14:
    case 15:
    case 16:
    case 17:
      return ask_for_work();
    case 18:
    case 19:
    case 20:
    case 21:
      return answer();
    case 22:
      return report_usage();
    case 23:
    case 24:
    case 25:
      return allocate();
    case 26:
    case 27:
    case 28:
    case 29:
      return move_memory();
    case 30:
      return change_settings();
    default:
      return talk_nonsense();
  }
}

// --- choices ----------------------------------------------------------------------------------

// Mostly one that is there.
ClientId Player::some_client() {
  const auto& clients = watch_.clients();
  const std::uint32_t choice = dice_.byte();
  if (clients.empty() || choice >= 250) return {choice % 12};
  return std::next(clients.begin(), choice % static_cast<std::ptrdiff_t>(clients.size()))->first;
}

// Mostly one that is like this, if there is one.
ClientId Player::some_client(bool (*fitting)(const ShadowClient&)) {
  std::vector<ClientId> found;
  for (const auto& [id, client] : watch_.clients()) {
    if (fitting(client)) found.push_back(id);
  }
  if (found.empty() || dice_.one_in(16)) return some_client();
  return found[dice_.below(static_cast<std::uint32_t>(found.size()))];
}

Bytes Player::some_bytes() {
  const std::int64_t odd = dice_.one_in(8) ? dice_.byte() : 0;
  const auto unit = dice_.pick<Bytes>({mib(16), mib(64), mib(1), mib(16)});
  return unit * dice_.below(64) + Bytes{odd};
}

Duration Player::some_time() {
  const auto unit = dice_.pick<Duration>({1ms, 1ns, 1us, 100us, 10ms, 100ms, 500ms, 3s});
  return unit * dice_.below(16);
}

// --- what can happen --------------------------------------------------------------------------

void Player::pass_time() {
  now_ += some_time();
  const auto due = core_.next_wakeup();
  if (due && *due <= now_ && !dice_.one_in(4)) tell(Tick{});
}

// Sometimes nobody says a word for a long time.
void Player::wake_up() {
  for (int ticks = dice_.one_in(16) ? 300 : 1; ticks > 0; --ticks) {
    const auto due = core_.next_wakeup();
    if (due && *due > kEnd) return;
    if (due) now_ = std::max(now_, *due);
    tell(Tick{});
    if (!due) return;
  }
}

void Player::change_the_machine() {
  switch (dice_.below(4)) {
    case 0:
      tell(GpuAdded{some_gpu(), dice_.pick<Bytes>({gib(16), gib(4), gib(1)})});
      return;
    case 1:
      if (dice_.one_in(4)) tell(GpuRemoved{some_gpu()});
      return;
    case 2:
      tell(OverlapSeen{some_gpu(), dice_.one_in(2)});
      return;
    default:
      tell(OverheadMeasured{some_gpu(), some_bytes()});
  }
}

std::optional<TenantId> Player::some_parent() {
  if (dice_.one_in(2)) return std::nullopt;
  return some_tenant();
}

void Player::change_tenants() {
  const TenantId tenant = some_tenant();
  switch (dice_.below(10)) {
    case 9:
      tell(PriorityLent{tenant, some_gpu(),
                        dice_.one_in(3) ? std::nullopt : std::optional(dice_.between(-10, 10))});
      tell(ClientLeased{
          some_client(),
          dice_.pick<ClientLease>({ClientLease::None, ClientLease::Held, ClientLease::Over})});
      return;
    case 6:
    case 7:
      tell(TenantSleeps{tenant, !dice_.one_in(3), dice_.one_in(2)});
      return;
    case 8:
      tell(TenantSleeps{TenantId{dice_.below(3)}, !dice_.one_in(3), dice_.one_in(3)});
      return;
    case 0:
      tell(TenantAdded{tenant, "t", random_limits(dice_), some_parent()});
      return;
    case 1:
      tell(TenantRemoved{tenant});
      return;
    case 2:
    case 3:
      tell(TenantPaused{tenant, dice_.one_in(2)});
      return;
    default:
      tell(LimitsChanged{tenant, random_limits(dice_)});
  }
}

void Player::change_clients() {
  if (dice_.one_in(4)) {
    tell(ClientGone{some_client()});
    return;
  }
  std::optional<GpuId> gpu;
  if (!dice_.one_in(3)) gpu = GpuId{dice_.one_in(4) ? 1u : 0u};
  const TenantId tenant = dice_.one_in(8) ? some_tenant() : TenantId{dice_.below(3)};
  tell(ClientAdded{ClientId{dice_.below(12)}, tenant, gpu});
}

void Player::ask_for_work() {
  tell(WorkRequested{some_client([](const ShadowClient& c) { return !c.asked; })});
}

// Sometimes before it is told to, sometimes with a meter that shows more than can be.
void Player::answer() {
  const ClientId id = some_client([](const ShadowClient& c) { return c.held != Held::No; });
  const auto it = watch_.clients().find(id);
  Duration held{};
  if (it != watch_.clients().end()) held = now_ - it->second.granted_at;
  const Duration used = dice_.one_in(8) ? some_time() : held * dice_.below(5) / 4;
  tell(Released{id, used, dice_.one_in(2)});
}

void Player::report_usage() {
  const ClientId id = some_client();
  const auto it = watch_.clients().find(id);
  Duration held{};
  if (it != watch_.clients().end()) held = now_ - it->second.granted_at;
  tell(Usage{id, dice_.one_in(4) ? some_time() : held * dice_.below(5) / 4});
}

void Player::allocate() {
  const ClientId id = some_client();
  const auto it = watch_.clients().find(id);
  if (it == watch_.clients().end()) {
    tell(MemoryChanged{id, some_bytes(), {}, {}});
    return;
  }
  const ShadowClient& c = it->second;
  Bytes allocated = some_bytes();
  if (!dice_.one_in(8)) allocated = std::max(allocated, c.awaits);
  Bytes resident = std::min(c.resident, std::max(Bytes{}, allocated - c.awaits));
  if (dice_.one_in(8)) resident = std::min(resident, some_bytes());
  Bytes pinned = std::min(c.pinned, resident);
  if (dice_.one_in(8)) pinned = std::min(resident, some_bytes());
  if (dice_.one_in(16)) resident = some_bytes();
  if (dice_.one_in(16)) {
    tell(MemoryFound{id, allocated, pinned, resident});
    return;
  }
  const bool pins = dice_.one_in(3) && allocated > c.allocated;
  if (pins) pinned += allocated - c.allocated;
  const bool may_wait = !pins || dice_.one_in(2);
  tell(MemoryChanged{id, allocated, pinned, resident, may_wait, pins});
}

// What is left of a client's orders after that, as the shell knows it. Whole chunks go out: what is
// more than was ordered may have been for one order of several.
MemoryMoved Player::with_left(const ShadowClient& client, MemoryMoved moved) {
  const Bytes in = std::max(Bytes{}, moved.resident - client.resident) + moved.missing;
  Bytes out = std::max(Bytes{}, client.resident - moved.resident) + moved.kept;
  if (dice_.one_in(4)) out = Bytes{out.count / 2};
  moved.in_left = std::max(Bytes{}, client.in_left - in);
  moved.out_left = std::max(Bytes{}, client.out_left - out);
  if (dice_.one_in(32)) moved.in_left = moved.out_left = Bytes{};
  return moved;
}

void Player::move_memory() {
  const ClientId id = some_client(
      [](const ShadowClient& c) { return c.in_left.count > 0 || c.out_left.count > 0; });
  const auto it = watch_.clients().find(id);
  if (it == watch_.clients().end()) return;
  const ShadowClient& c = it->second;
  const bool in = c.in_left.count > 0;
  const Bytes left = in ? c.in_left : c.out_left;
  Bytes piece = left;
  if (dice_.one_in(3)) piece = Bytes{left.count / (1 + dice_.below(7))};
  if (dice_.one_in(16)) piece = some_bytes();
  if (!in && dice_.one_in(3)) piece = std::min(piece + some_bytes(), c.resident - c.pinned);
  MemoryMoved moved{id, in ? c.resident + piece : c.resident - piece, some_time()};
  if (in && dice_.one_in(2)) moved.fresh = some_bytes();
  if (dice_.one_in(4)) (in ? moved.missing : moved.kept) = dice_.one_in(4) ? some_bytes() : left;
  if (dice_.one_in(8)) moved.resident = c.resident;  // the order is over, and nothing has moved
  tell(with_left(c, moved));
}

HostMemoryComing Player::some_host_memory() {
  HostMemoryComing event{some_client(), dice_.one_in(2) ? Bytes{} : some_bytes()};
  if (dice_.one_in(2)) event.ready = some_bytes();
  return event;
}

void Player::change_settings() {
  switch (dice_.below(4)) {
    case 0:
      tell(SchedulingSwitched{dice_.one_in(2)});
      return;
    case 1:
      if (dice_.one_in(3)) {
        HostMeasured event;
        if (!dice_.one_in(3)) event.most = some_bytes();
        tell(event);
        return;
      }
      tell(some_host_memory());
      return;
    default:
      Config config = random_config(dice_);
      const bool allowed = !dice_.one_in(4);
      if (allowed) config.policy = config_.policy, config.window = config_.window;
      tell(ConfigChanged{config});
  }
}

// Values that no honest shell sends, and times that have passed.
Event Player::nonsense() {
  const std::int64_t wild = dice_.pick<std::int64_t>({-1, 0, kMost, kLeast, 1, kMost - 1});
  const std::int64_t other = dice_.pick<std::int64_t>({0, -1, kMost, kLeast});
  const ClientId client = some_client();
  switch (dice_.below(12)) {
    case 0:
      return GpuAdded{some_gpu(), {wild}};
    case 1:
      return OverheadMeasured{some_gpu(), {wild}};
    case 2:
      return TenantAdded{{static_cast<std::uint64_t>(wild)}, std::string(300, 'x'), {}};
    case 3:
      if (dice_.one_in(3)) return PriorityLent{some_tenant(), some_gpu(), dice_.between(-20, 20)};
      return LimitsChanged{some_tenant(), {static_cast<int>(wild % 1000), {}, 0}};
    case 4:
      return LimitsChanged{some_tenant(),
                           {.memory = Bytes{wild}, .priority = dice_.between(-20, 20)}};
    case 5:
      return ClientAdded{{static_cast<std::uint64_t>(wild)}, some_tenant(), GpuId{99}};
    case 6:
      return Released{client, Duration{wild}, dice_.one_in(2), Duration{other}};
    case 7:
      return Usage{client, Duration{wild}};
    case 8:
      if (dice_.one_in(4)) return MemoryFound{client, {wild}, {other}, {wild}};
      return MemoryChanged{client, {wild}, {other}, {dice_.one_in(2) ? wild : other}};
    case 9:
      if (dice_.one_in(2)) return MemoryMoved{client, {wild}, Duration{other}};
      if (dice_.one_in(2)) return MemoryMoved{client, {}, {}, {}, {}, {wild}, {other}};
      if (dice_.one_in(2)) return HostMemoryComing{client, {wild}};
      if (dice_.one_in(2)) return HostMeasured{Bytes{wild}};
      return MemoryMoved{client, {}, {}, {wild}, {other}};
    case 10: {
      Config config = config_;
      if (dice_.one_in(4)) config.turn = Duration{wild};
      if (dice_.one_in(2)) config.reserve_base = Bytes{wild};
      if (dice_.one_in(2)) config.reserve_per_process = Bytes{wild};
      if (dice_.one_in(2)) config.link_per_second = Bytes{wild};
      return ConfigChanged{config};
    }
    default:
      return WorkRequested{{static_cast<std::uint64_t>(wild)}};
  }
}

void Player::talk_nonsense() {
  const Event event = nonsense();
  const Time at = now_ + dice_.pick<Duration>({0ns, -1us, 10ms});
  if (tell(event, at)) {
    now_ = at;
  } else {
    watch_.expect(tell(Tick{}), Rule::Refused, "the time has changed");
  }
}

// --- good behaviour ---------------------------------------------------------------------------

bool Player::answer_all() {
  std::vector<Event> answers;
  for (const auto& [id, c] : watch_.clients()) {
    const bool goes_out = c.out_left.count > 0;
    if (goes_out) {
      const Bytes out = std::min(c.out_left, c.resident - c.pinned);
      answers.push_back(MemoryMoved{id, c.resident - out, 1ms, {}, {}, {}, c.in_left});
    }
    if (!goes_out && c.in_left.count > 0) {
      const Bytes in = std::min(c.in_left, c.absent());
      answers.push_back(MemoryMoved{id, c.resident + in, 1ms});
    }
    if (c.held != Held::No) answers.push_back(Released{id, now_ - c.granted_at, false});
  }
  for (const Event& answer : answers) tell(answer);
  return !answers.empty();
}

bool Player::behave_once() {
  if (answer_all()) {
    now_ += 1ms;
    return true;
  }
  const auto due = core_.next_wakeup();
  if (!due) return false;
  now_ = std::max(now_, *due);
  tell(Tick{});
  return true;
}

// Debts from before can take longer than a test can play; all goes on once they are paid.
bool Player::somebody_pays_off_debt() const {
  for (const auto& [id, client] : watch_.clients()) {
    const std::string why = *core_.explain(id, now_);
    if (client.waits() &&
        (why.rfind("core limit reached", 0) == 0 || why.rfind("has used", 0) == 0)) {
      return true;
    }
  }
  return false;
}

// Until nobody waits and no sleeper holds what it can send out, or nothing happens any more. False
// when debts from before take too long.
bool Player::behave() {
  const auto unsettled = [&] {
    const auto& c = watch_.clients();
    return std::any_of(c.begin(), c.end(), [&](const auto& entry) {
      const ShadowClient& client = entry.second;
      return is_held(client.tenant) ? client.resident > client.pinned : client.waits();
    });
  };
  constexpr int kLongEnough = 5000;
  int in_debt = -kLongEnough;  // when somebody last was
  for (int i = 0; i < kLongEnough && watch_.broken().empty() && unsettled(); ++i) {
    if (somebody_pays_off_debt()) in_debt = i;
    if (core_.next_wakeup().value_or(now_) > kEnd) return false;
    if (!behave_once()) break;
    if (i + 1 == kLongEnough && i - in_debt < kLongEnough / 2) return false;
  }
  return true;
}

bool Player::is_held(TenantId tenant) const {
  const auto sleep = core_.sleep_of(tenant);
  return sleep && sleep->hold;
}

// The clients that wait although their memory could be there, and the sleepers that keep theirs.
std::string Player::left_behind() const {
  std::string left;
  for (const auto& [id, client] : watch_.clients()) {
    if (is_held(client.tenant)) {
      if (client.resident > client.pinned) {
        left += fmt::format("client {} sleeps and keeps its memory\n", id.value);
      }
      continue;
    }
    Bytes others{};
    for (const auto& [other_id, other] : watch_.clients()) {
      if (other.gpu == client.gpu && other_id != id) others += other.pinned + other.awaits;
    }
    for (const GpuView& gpu : watch_.seen().gpus) {
      const bool fits = gpu.id == client.gpu && client.allocated + others <= gpu.safe_limit;
      if (fits && client.waits()) {
        left += fmt::format("client {} is never served: {}\n", id.value, *core_.explain(id, now_));
      }
    }
  }
  return left;
}

std::string Player::settle() {
  if (!watch_.scheduling()) tell(SchedulingSwitched{true});
  const auto tenants = watch_.seen().tenants;
  for (const TenantView& tenant : tenants) {
    if (tenant.paused) tell(TenantPaused{tenant.id, false});
    tell(LimitsChanged{tenant.id, Limits{}});
    for (const GpuView& gpu : watch_.seen().gpus) tell(PriorityLent{tenant.id, gpu.id});
  }
  // There is host memory for everyone: as much as each wants, or just what is claimed, and what
  // sleepers send out.
  std::vector<ClientId> there;
  Bytes sleeps{};
  for (const auto& [id, client] : watch_.clients()) {
    there.push_back(id);
    if (is_held(client.tenant)) sleeps += client.allocated;
  }
  const bool just_enough = dice_.one_in(2);
  tell(HostMeasured{});
  for (const ClientId id : there) {
    tell(ClientLeased{id});
    HostMemoryComing event{id};
    if (just_enough) event.ready = kMostMemory;
    tell(event);
  }
  if (just_enough) {
    Bytes claimed = sleeps;
    for (const GpuView& gpu : core_.snapshot().gpus) claimed += gpu.host_claim;
    tell(HostMeasured{std::min(claimed, kMostMemory)});
  }
  // First beside the tenants that are held asleep, which keep nobody waiting; then with them.
  if (!behave()) return {};
  std::string left = left_behind();
  for (const TenantView& tenant : tenants) {
    if (is_held(tenant.id)) tell(TenantSleeps{tenant.id, false});
  }
  if (!left.empty() || !behave()) return left;
  return left_behind();
}

}  // namespace nvshare::properties
