// Any packets from any clients, at any times: the scheduler neither crashes nor breaks what it has
// promised them.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/broker/broker.h"
#include "slab_book.h"
#include "tree_book.h"

namespace {

using namespace nvshare;
using namespace nvshare::daemon;

// What every client was told, checked as it goes by.
class Checker final : public Outbox {
 public:
  void send(ClientId client, const wire::Header& message) override {
    must(!gone.contains(client), "a message to a client that has left");
    const wire::Header* header = wire::look_at(&message, message.size);
    must(header != nullptr, "a packet that is none");
    if (const auto* grant = wire::as<wire::Grant>(header)) {
      must(grant->grant > last_grant, "grants are numbered upwards");
      must(!held.contains(client), "a second grant");
      last_grant = held[client] = grant->grant;
    }
    if (const auto* drop = wire::as<wire::Drop>(header)) {
      // What the packet says of memory is taken first: a drop may meet the release on its way.
      must(drop->grant == being_released || (held.contains(client) && held[client] == drop->grant),
           "a drop of what is not held");
    }
    if (const auto* given = wire::as<wire::MemoryAvailable>(header)) note_answer(given->request);
    if (const auto* no = wire::as<wire::MemoryRefused>(header)) {
      note_answer(no->request);
      refused.insert(no->request);
    }
    if (const auto* wait = wire::as<wire::MemoryWait>(header)) {
      note_answer(wait->request);
      // What cannot move is waited for: there is one more answer to come.
      if (pinned.contains(wait->request)) ++requests;
    }
    if (const auto* out = wire::as<wire::SwapOut>(header)) {
      take_order(client, {out->order, out->bytes, true});
    }
    if (const auto* in = wire::as<wire::SwapIn>(header)) {
      take_order(client, {in->order, in->bytes, false});
    }
    slabs.hear(client, header);
  }
  void note_answer(std::uint64_t request) {
    must(++answers <= requests, "an answer that nobody asked for");
    ++answered[request];
  }
  struct Order {
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;
    bool out = false;
  };
  void take_order(ClientId client, const Order& order) {
    must(order.number > last_order, "orders are numbered upwards");
    must(!order.out || !held.contains(client), "memory leaves while its owner runs");
    last_order = order.number;
    orders[client] = order;
  }
  void hand_over(ClientId client, const wire::Header& message, int) override {
    send(client, message);
  }
  void tell_run(TenantId, const wire::Header& message) override {
    must(wire::look_at(&message, message.size) != nullptr, "a packet that is none");
  }
  void disconnect(ClientId client, std::string_view) override { doomed.insert(client); }
  void end(ClientId client) override { doomed.insert(client); }

  SlabBook slabs;
  std::uint64_t last_grant = 0;
  std::uint64_t last_order = 0;
  std::map<ClientId, Order> orders;  // the last one
  std::uint64_t requests = 0;
  std::uint64_t answers = 0;
  std::set<std::uint64_t> pinned;                   // requests for what cannot move
  std::map<std::uint64_t, std::uint64_t> answered;  // how often
  std::set<std::uint64_t> refused;
  std::map<ClientId, std::uint64_t> held;
  std::uint64_t being_released = 0;  // by the packet that the broker takes now
  std::set<ClientId> doomed;
  std::set<ClientId> gone;
};

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> data) : data_(data) {}
  bool empty() const { return data_.empty(); }
  std::uint8_t byte() {
    if (data_.empty()) return 0;
    const std::uint8_t first = data_[0];
    data_ = data_.subspan(1);
    return first;
  }
  // Small numbers are as likely as any.
  std::uint64_t number() {
    const std::uint8_t kind = byte();
    if (kind < 200) return kind % 32;
    std::uint64_t value = 0;
    for (int i = 0; i < 1 + kind % 8; ++i) value = value << 8 | byte();
    return value;
  }
  void fill(char* to, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) to[i] = static_cast<char>(byte());
  }

 private:
  std::span<const std::uint8_t> data_;
};

constexpr std::uint64_t kOurs = 1ull << 63;   // marks requests whose answers are counted
constexpr std::uint64_t kUnit = 64ull << 20;  // of memory, so that small numbers matter

class Play {
 public:
  explicit Play(std::span<const std::uint8_t> data)
      : bytes_(data), log_(Level::Error, [](std::string_view line) {
          must(line.find("event=client_not_forgotten") == line.npos, "a client stays");
          must(line.find("event=memory_not_booked") == line.npos, "memory is not booked");
          must(line.find("event=credit_not_booked") == line.npos, "credit is not booked");
          must(line.find("event=host_memory_not_told") == line.npos, "host memory is not told");
          must(line.find("event=tenant_not_removed") == line.npos, "a tenant stays");
        }) {
    core::Config config;
    config.share_mode = static_cast<core::ShareMode>(bytes_.byte() % 3);
    config.policy = core::kComputePolicies[bytes_.byte() % core::kComputePolicies.size()];
    broker_ = std::make_unique<Broker>(config, now_, outbox_, log_);
    broker_->accept_claimed_gpus();
    arena_.limit = gib(1 + bytes_.byte() % 16);
    broker_->places().set_arena(arena_);
  }

  void play() {
    while (!bytes_.empty()) {
      one();
      make_pieces();
      settle();
      check_arena();
      check();
      if (fate_ % 4 == 0) TreeBook(*broker_).check();
    }
  }

 private:
  void one() {
    now_ += Duration{static_cast<std::int64_t>(bytes_.number() % (1ull << 36))};
    fate_ = bytes_.byte();
    if (broker_->next_wakeup() && *broker_->next_wakeup() <= now_) broker_->tick(now_);
    switch (bytes_.byte() % 16) {
      case 0:
        return join();
      case 1:
        return scheduler_itself();
      case 2:
        return raw();
      case 3:
        return meter();
      case 4:
        if (const ClientId* id = some_client()) outbox_.doomed.insert(*id);
        return;
      default:
        return packet();
    }
  }

  const ClientId* some_client() {
    if (clients_.empty()) return nullptr;
    auto at = clients_.begin();
    std::advance(at, bytes_.byte() % clients_.size());
    return &at->first;
  }
  std::optional<TenantId> some_tenant() {
    const auto& tenants = broker_->tenants();
    if (tenants.empty()) return std::nullopt;
    auto at = tenants.begin();
    std::advance(at, bytes_.byte() % tenants.size());
    return at->first;
  }

  Result<TenantId> user() {
    const int which = bytes_.byte() % 4;
    core::Limits limits;
    if (which > 1) limits.core_percent = 30 * which;
    if (which > 2) limits.memory = mib(256);
    return broker_->tenant_for({TenantKind::User, "user-" + std::to_string(which), 0}, limits,
                               now_);
  }
  // A run says what becomes of its programs' memory, and whether they may be larger than the GPU.
  // It may be a part of any tenant.
  Result<TenantId> run() {
    const int kind = bytes_.byte();
    const int which = kind % 8;
    const std::string name = "run-" + std::to_string(which);
    if (const TenantRecord* known = broker_->find_tenant(name)) return known->id;
    core::Limits limits;
    if (which % 4 == 3) limits.memory = gib(12);
    const auto backend = which == 0 ? wire::Backend::Native : wire::Backend::Managed;
    const TenantMap& tenants = broker_->tenants();
    std::optional<TenantId> parent;
    auto at = std::next(tenants.begin(), kind / 8 % (static_cast<int>(tenants.size()) + 1));
    if (kind / 8 > 0 && at != tenants.end()) parent = at->first;
    return broker_->begin_run({TenantKind::Run, name, 0}, limits, now_, backend, which > 1, parent);
  }

  void join() {
    const auto tenant = bytes_.byte() % 2 == 0 ? user() : run();
    if (!tenant) return;  // too deep in one another
    auto hello = wire::make<wire::Hello>();
    hello.magic = wire::kMagic;
    hello.major = wire::kMajor;
    hello.minor = bytes_.byte() % (wire::kMinor + 1);
    hello.gpu[0] = bytes_.byte() % 2;
    hello.gpu_memory = 8ull << 30;
    hello.allocated = bytes_.number() * kUnit;
    hello.resident = std::min(bytes_.number() * kUnit, hello.allocated);
    hello.pinned = std::min(bytes_.number() * kUnit, hello.resident);
    hello.memory_limit = bytes_.number() * kUnit;
    auto page = std::make_unique<wire::Page>();
    const char* const homes[] = {"", "home", "home", "elsewhere"};
    const Peer peer{++processes_, 0, homes[bytes_.byte() % 4]};
    const auto welcome = broker_->hello(hello, peer, *tenant, *page, now_);
    if (welcome) clients_[ClientId{welcome->client}] = std::move(page);
  }

  void scheduler_itself() {
    const auto tenant = some_tenant();
    if (!tenant) return;
    switch (bytes_.byte() % 9) {
      case 6:
      case 7: {
        const bool asleep = bytes_.byte() % 3 != 0;
        return (void)broker_->set_asleep(*tenant, asleep, bytes_.byte() % 2 == 0, now_);
      }
      case 8: {
        core::Config config = broker_->core().config();
        config.idle_out = std::chrono::milliseconds(bytes_.byte());
        return (void)broker_->set_config(config, now_);
      }
      case 0:
        return (void)broker_->set_paused(*tenant, bytes_.byte() % 2 == 0, now_);
      case 1:
        return (void)broker_->set_scheduling(bytes_.byte() % 2 == 0, now_);
      case 2:
        if (bytes_.byte() % 4 == 0) outbox_.slabs.orphans.clear();  // these processes end
        return broker_->sample(now_);
      case 3: {
        core::Limits limits;
        limits.core_percent = bytes_.byte() % 102;
        if (bytes_.byte() % 2 == 0) limits.memory = Bytes{bytes_.byte() * std::int64_t{kUnit}};
        const bool within_parents = bytes_.byte() % 2 == 0;
        return (void)broker_->set_limits(*tenant, limits, now_, within_parents);
      }
      case 4:
        if (broker_->tenants().at(*tenant).is.kind != TenantKind::Run) return;
        if (bytes_.byte() % 4 == 0) return broker_->end_run(*tenant, now_, true);
        broker_->end_run(*tenant, now_);
        return broker_->set_vacant(*tenant, now_);
      default:
        return broker_->gpu_measured(
            GpuId{bytes_.byte() % 2u}, 50, Bytes{0},
            Overhead{Bytes{bytes_.byte() * std::int64_t{kUnit}}, bytes_.byte() % 8}, now_);
    }
  }

  void meter() {
    const ClientId* id = some_client();
    if (id == nullptr) return;
    wire::Page::FromProgram& page = clients_.at(*id)->program;
    page.grant = bytes_.byte() % 2 == 0 ? outbox_.last_grant : bytes_.number();
    page.used = bytes_.number();
    page.rounding = bytes_.number() * kUnit;
    if (bytes_.byte() % 8 == 0) {  // scribbles on what is not its own
      bytes_.fill(reinterpret_cast<char*>(&clients_.at(*id)->scheduler), 40);
      credit_of(*id).cap = bytes_.number() * kUnit;
    }
    spend(credit_of(*id));
  }

  wire::Credit& credit_of(ClientId id) {
    wire::Page& page = *clients_.at(id);
    return bytes_.byte() % 2 == 0 ? page.movable_credit : page.pinned_credit;
  }
  // As it should, or not.
  void spend(wire::Credit& credit) {
    const std::uint64_t bytes = bytes_.number() * (bytes_.byte() % 4 == 0 ? 1 : kUnit);
    switch (bytes_.byte() % 3) {
      case 0:
        return (void)wire::take(credit, bytes);
      case 1:
        return (void)wire::give(credit, bytes);
      default:
        credit.bytes = bytes;
    }
  }

  void raw() {
    const ClientId* id = some_client();
    if (id == nullptr) return;
    alignas(8) char buffer[wire::kMaxMessage];
    const std::size_t size = bytes_.byte() % 128;
    bytes_.fill(buffer, size);
    const wire::Header* header = wire::look_at(buffer, size);
    if (wire::as<wire::MemoryRequest>(header) != nullptr) {
      reinterpret_cast<wire::MemoryRequest*>(buffer)->request &= ~kOurs;
    }
    if (const auto* request = wire::as<wire::MemoryRequest>(header)) {
      ++outbox_.requests;
      if (request->movable == 0) outbox_.pinned.insert(request->request);
    }
    if (wire::as<wire::Released>(header) != nullptr) return;  // packet() keeps count of those
    outbox_.slabs.say(*id, header);
    broker_->packet(*id, header, now_);
  }

  void packet() {
    const ClientId* found = some_client();
    if (found == nullptr) return;
    const ClientId id = *found;
    switch (bytes_.byte() % 12) {
      case 0: {
        const auto message = wire::make<wire::RequestGrant>();
        return broker_->packet(id, &message.header, now_);
      }
      case 1: {
        auto message = wire::make<wire::Released>();
        const bool right = bytes_.byte() % 16 != 0 && outbox_.held.contains(id);
        message.grant = right ? outbox_.held[id] : bytes_.number();
        message.used = bytes_.number();
        message.more_work = bytes_.byte() % 2;
        // Before the packet is taken: the next grant may be the answer to it.
        const auto let_go = [&] {
          if (!outbox_.held.contains(id) || message.grant != outbox_.held[id]) return;
          outbox_.being_released = message.grant;
          outbox_.held.erase(id);
        };
        let_go();
        broker_->packet(id, &message.header, now_);
        let_go();  // it has guessed the number of a grant that this packet brought
        outbox_.being_released = 0;
        return;
      }
      case 2: {
        auto message = wire::make<wire::MemoryRequest>();
        message.request = ++outbox_.requests | kOurs;
        message.bytes = bytes_.number() * (bytes_.byte() % 4 == 0 ? 1 : kUnit);
        message.movable = bytes_.byte() % 2;
        if (message.movable == 0) outbox_.pinned.insert(message.request);
        broker_->packet(id, &message.header, now_);
        // What cannot move may be told to wait and be given in one.
        const std::uint64_t answered = outbox_.answered[message.request];
        if (message.bytes > 0 && !outbox_.refused.contains(message.request)) {
          TreeBook(*broker_).check_given(id);
        }
        return must(answered == 1 || (answered == 2 && message.movable == 0),
                    "every request has one answer");
      }
      case 3: {
        auto message = wire::make<wire::MemoryFreed>();
        message.bytes = bytes_.number() * kUnit;
        message.resident = bytes_.number() * kUnit;
        message.pinned = bytes_.number() * kUnit;
        return broker_->packet(id, &message.header, now_);
      }
      case 4: {
        auto message = wire::make<wire::MemoryPinned>();
        message.bytes = bytes_.number() * kUnit;
        return broker_->packet(id, &message.header, now_);
      }
      case 5: {
        auto kept = wire::make<wire::ArenaKept>();
        auto returned = wire::make<wire::ArenaReturned>();
        auto missing = wire::make<wire::ArenaMissing>();
        kept.bytes = returned.bytes = missing.bytes =
            bytes_.number() * (bytes_.byte() % 4 == 0 ? 1 : kUnit);
        const wire::Header* const headers[] = {&kept.header, &returned.header, &missing.header,
                                               &returned.header};
        return broker_->packet(id, headers[bytes_.byte() % 4], now_);
      }
      case 6:
      case 7:
      case 8:
        return slabs(id);
      default: {
        auto message = wire::make<wire::MemoryMoved>();
        const Checker::Order& order = outbox_.orders[id];
        const bool obeys = bytes_.byte() % 4 == 0;
        message.order = !obeys && bytes_.byte() % 8 == 0 ? bytes_.number() : order.number;
        const bool out = obeys ? order.out : bytes_.byte() % 2 == 0;
        (out ? message.out : message.in) = obeys ? order.bytes : bytes_.number() * kUnit;
        message.copied = bytes_.number();
        message.took = bytes_.number();
        message.done = bytes_.byte() % 2;
        message.no_room = bytes_.byte() % 2;
        return broker_->packet(id, &message.header, now_);
      }
    }
  }

  // Of slabs that the client was told of, or not.
  void slabs(ClientId id) {
    const auto all = outbox_.slabs.of[id];
    if (bytes_.byte() % 2 == 0) {
      for (const auto& [segment, known] : all) {
        say_slabs<wire::ArenaTaken>(id, segment, known.told);
        say_slabs<wire::ArenaClosed>(id, segment, known.closing);
      }
      return;
    }
    std::pair<SegmentId, SlabBook::Known> one;
    if (!all.empty()) one = *std::next(all.begin(), bytes_.byte() % all.size());
    auto [segment, known] = one;
    const Slabs some = ~Slabs{0} << bytes_.byte() % 64;
    const int kind = bytes_.byte();
    const bool honest = kind < 192;
    if (!honest && bytes_.byte() % 2 == 0) segment = bytes_.number();
    if (!honest) {
      const Slabs wild = bytes_.number();
      known = {wild, wild, wild, wild};
    }
    switch (kind % 4) {
      case 0:
        return say_slabs<wire::ArenaTaken>(id, segment, known.told & some, honest);
      case 1:
        return say_slabs<wire::ArenaClosed>(id, segment, known.closing & some, honest);
      case 2:
        return say_slabs<wire::ArenaPassed>(id, segment, known.owned & some, honest, true);
      default:
        Slabs passed = known.owned & some;
        const Bytes most = broker_->clients().at(id).arena.returnable;
        while (honest && SlabBook::kSlab * std::popcount(passed) > most) passed &= passed - 1;
        return say_slabs<wire::ArenaPassed>(id, segment, passed, honest);
    }
  }
  template <typename Message>
  void say_slabs(ClientId id, SegmentId segment, Slabs slabs, bool honest = true,
                 bool missing = false) {
    if (honest && slabs == 0) return;
    auto message = wire::make<Message>();
    message.segment = segment;
    message.slabs = slabs;
    message.missing = missing ? 1 : 0;
    outbox_.slabs.say(id, &message.header);
    broker_->packet(id, &message.header, now_);
    must(!honest || !outbox_.doomed.contains(id), "an honest client stays");
  }

  void make_pieces() {
    for (const auto& [id, bytes] : std::exchange(arena_.wanted, {})) {
      if (!clients_.contains(id)) continue;
      if (fate_ % 8 == 7) {
        broker_->places().failed(id, bytes, "fuzz", now_);
      } else {
        broker_->places().ready(id, 0, bytes, now_, ++segments_);
      }
    }
  }

  // Who was to be disconnected is, as the server does it at the end of a turn.
  void settle() {
    while (!outbox_.doomed.empty()) {
      const ClientId id = *outbox_.doomed.begin();
      outbox_.doomed.erase(outbox_.doomed.begin());
      if (!clients_.contains(id)) continue;
      outbox_.gone.insert(id);
      outbox_.held.erase(id);
      const int pid = broker_->clients().at(id).pid;
      outbox_.slabs.leave(id, pid);
      if (fate_ < 128) outbox_.slabs.orphans.erase(pid);  // its process ends with it
      broker_->leave(id, now_);
      clients_.erase(id);
    }
  }

  // What is lent is within all limits, used or not.
  void check_credit(const ClientRecord& client) const {
    const Bytes left = broker_->core().memory_room(client.id)->limit;
    must(client.memory.credit_left() <= left, "within the tenant's limit and its own");
    Bytes on_gpu{};
    for (const ClientId id : broker_->gpus().at(client.gpu).clients) {
      const ClientRecord& one = broker_->clients().at(id);
      on_gpu += one.memory.counted() + one.memory.credit_left();
      must(id == client.id || one.tenant != client.tenant, "to one of a tenant");
    }
    must(on_gpu <= *broker_->core().safe_limit(client.gpu), "within what is safe");
    must(client.memory.beyond() == Bytes{0}, "and whose memory is all counted");
    TreeBook(*broker_).check_credit(client);
  }

  // Clients bring host memory beyond what the arena has; all else is within it.
  void check_arena() {
    const Places& places = broker_->places();
    must(places.used() <= arena_.most() + places.brought(), "no more than the arena has");
    must(places.used() >= outbox_.slabs.there(), "all slabs that are there are counted");
    for (const auto& [id, client] : broker_->clients()) {
      must(client.arena.given >= Bytes{0}, "no host memory is no host memory");
      must(client.arena.given <= client.arena.made, "no more host memory than was made");
      for (const auto& [segment, known] : outbox_.slabs.of[id]) {
        const auto [at, fresh] = homes_.emplace(segment, client.home);
        must(at->second == client.home, "slabs stay in their home");
      }
    }
  }

  void check() const {
    must(broker_->clients().size() == clients_.size(), "who is there is known");
    for (const auto& [id, client] : broker_->clients()) {
      const auto view = broker_->core().view(id);
      must(view.has_value(), "the core knows every client");
      must(view->allocated == client.memory.counted(), "the core counts what the account says");
      must(view->pinned <= view->resident && view->resident <= view->allocated, "books");
      must(client.memory.counted() <= broker_->gpus().at(client.gpu).total, "at most the GPU");
      must(client.memory.doubted() >= Bytes{0}, "no doubt is no doubt");
      must(client.memory.beyond() >= Bytes{0} &&
               client.memory.beyond() <= client.memory.could_move(),
           "what is beyond can move");
      must(client.memory.credit_left() >= Bytes{0}, "no credit is no credit");
      if (client.memory.credit_left() > Bytes{0}) check_credit(client);
      Bytes in_left{};
      Bytes out_left{};
      for (const auto& order : client.memory.orders())
        (order.out ? out_left : in_left) += order.left;
      must(view->incoming <= in_left && view->outgoing <= out_left, "nothing moves without orders");
      const bool holds = view->state == core::ClientState::Running ||
                         view->state == core::ClientState::Stopping ||
                         view->state == core::ClientState::Overdue;
      must(holds == client.turn.grant.has_value(), "a grant is held by whom the core says");
      must(holds == outbox_.held.contains(id), "and by whom the client knows of");
    }
  }

  Input bytes_;
  Log log_;
  Checker outbox_;
  Pieces arena_{outbox_.slabs};
  SegmentId segments_ = 0;
  std::uint8_t fate_ = 0;  // of pieces and processes, in this step
  int processes_ = 0;
  std::map<SegmentId, std::string> homes_;
  Time now_{std::chrono::seconds(1)};
  std::unique_ptr<Broker> broker_;
  std::map<ClientId, std::unique_ptr<wire::Page>> clients_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Play(std::span(data, size)).play();
  return 0;
}
