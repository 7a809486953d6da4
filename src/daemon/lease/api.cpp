#include "daemon/lease/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/uuid.h"
#include "daemon/lease/request_body.h"
#include "daemon/lease/status_view.h"
#include "daemon/lease/usage_config.h"
#include "daemon/serve/request.h"

namespace nvshare::daemon {
namespace {

using Object = nlohmann::ordered_json;

HttpReply json_reply(int status, const Object& body) {
  return {status, text_of(body), {}};
}

int status_of(core::Outcome outcome) {
  switch (outcome) {
    case core::Outcome::Acquired:
      return 201;
    case core::Outcome::Skipped:
    case core::Outcome::FallbackCpu:
      return 409;
    case core::Outcome::QueueFull:
      return 429;
    case core::Outcome::Timeout:
    case core::Outcome::Revoked:
    case core::Outcome::Preparing:
      return 503;
  }
  return 500;
}

// The answer to a request for a lease.
HttpReply lease_reply(const core::Answer& answer, const Object& body) {
  HttpReply reply = json_reply(status_of(answer.outcome), body);
  if (answer.outcome == core::Outcome::Acquired) return reply;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(answer.retry_after).count();
  reply.headers.emplace_back("Retry-After", std::to_string(seconds));
  return reply;
}

constexpr int kGone = 410;
HttpReply taken_away(std::string_view line, std::string_view reason) {
  return json_reply(kGone, {{"error", line}, {"reason", reason}});
}

}  // namespace

// --- the requests ------------------------------------------------------------------------------

struct LeaseApi::Json {
  LeaseApi& api;
  HttpCall call;
  const HttpRequest& request;
  std::vector<std::string> words{};  // of the path, where the route has "*"

  using Answer = std::optional<HttpReply>;

  Time now() const { return api.world_.now(); }
  const core::Arbiter& arbiter() const { return api.leases_.arbiter(); }
  const Broker& broker() const { return api.world_.broker; }
  std::string wall(Time at) const { return utc_text(api.world_.wall_of(at)); }
  Result<GpuId> gpu_named(const Object& key) const;
  bool is_admin() const;
  bool may_see(std::optional<std::uint32_t> uid) const;
  // The lease that the path names, if the caller may have it; or the reply that says why not.
  const LeaseRecord* lease(HttpReply& refused) const;

  Result<Object> body() const { return body_of(request.body); }
  Result<void> take_hint(const Object& body, core::LeaseRequest& into) const;
  Result<void> take_owner(const Object& body, LeaseAsk& into) const;
  Result<void> take_policy(const Object& body, core::LeaseRequest& into) const;
  Object answer_of(const LeaseRecord& lease, const core::Answer& answer) const;
  Object view_of(const core::LeaseView& view) const;

  Answer ask(std::optional<Object> gpu);
  Answer ask_somewhere() { return ask(std::nullopt); }
  Answer ask_there() { return ask(Object(words[0])); }
  Answer list();
  Answer look();
  Answer release();
  Answer renew();
  Answer classes();
  Answer status();
  Answer stream();
  Answer config();
  Answer change();
};

// A GPU by its index, as a number or a text, or by its UUID.
Result<GpuId> LeaseApi::Json::gpu_named(const Object& key) const {
  const auto& gpus = api.world_.broker.gpus();
  const std::string text = key.is_string() ? key.get<std::string>() : key.dump();
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error == std::errc{} && end == text.data() + text.size() && index < gpus.size()) {
    return std::next(gpus.begin(), static_cast<std::ptrdiff_t>(index))->first;
  }
  if (const auto uuid = parse_uuid(text)) {
    if (const GpuRecord* found = api.world_.broker.find_gpu(*uuid)) return found->id;
  }
  return Error{fmt::format("there is no GPU {}; there are {}", key.dump(), gpus.size())};
}

bool LeaseApi::Json::is_admin() const {
  if (!request.peer) return false;
  const auto& [pid, uid, groups] = *request.peer;
  if (uid == 0 || uid == api.world_.own_uid) return true;
  const auto group = api.world_.admin_group;
  return group && std::ranges::find(groups, *group) != groups.end();
}

// A lease that came over TCP is nobody's: its name alone is the right to it.
bool LeaseApi::Json::may_see(std::optional<std::uint32_t> uid) const {
  return is_admin() || (request.peer && uid && *uid == request.peer->uid);
}

const LeaseRecord* LeaseApi::Json::lease(HttpReply& refused) const {
  const auto allowed = [&](std::optional<std::uint32_t> uid) { return !uid || may_see(uid); };
  if (const LeaseRecord* found = api.leases_.find(words[0])) {
    if (allowed(found->ask.uid)) return found;
    refused = http_error(403, "this lease is another user's");
  } else if (const PastLease* past = api.leases_.find_past(words[0])) {
    refused = http_error(403, "this lease is another user's");
    if (allowed(past->uid)) {
      refused = taken_away("this lease was taken away", past->reason);
    }
  } else if (const LateHolder* late = api.leases_.find_overdue(words[0])) {
    refused = http_error(403, "this lease is another user's");
    if (allowed(late->holder.uid)) {
      refused = taken_away("this lease was taken away", core::name_of(core::LeaseReason::Overdue));
    }
  } else {
    refused = http_error(404, "there is no such lease");
  }
  return nullptr;
}

// --- asking ------------------------------------------------------------------------------------

Result<void> LeaseApi::Json::take_hint(const Object& body, core::LeaseRequest& into) const {
  const auto hint = body.find("hint");
  if (hint == body.end() || hint->is_null()) return {};
  if (!hint->is_object()) return Error{"hint: it is not an object"};
  if (const auto good = only(*hint, {"estimatedAudioMs", "estimatedGpuHoldMs"}); !good) return good;
  if (const auto good = take_time(*hint, "estimatedAudioMs", into.audio); !good) return good;
  return take_time(*hint, "estimatedGpuHoldMs", into.gpu_hold);
}

Result<void> LeaseApi::Json::take_policy(const Object& body, core::LeaseRequest& into) const {
  const auto policy = body.find("busyPolicy");
  if (policy == body.end() || policy->is_null()) return {};
  if (policy->is_string()) into.refusal = core::refusal_by_name(policy->get<std::string>());
  if (!into.refusal) {
    return Error{fmt::format("busyPolicy: {} is not WAIT, SKIP or FALLBACK_CPU", policy->dump())};
  }
  return {};
}

// The process with which the lease ends: the caller, or another one of the same user.
Result<void> LeaseApi::Json::take_owner(const Object& body, LeaseAsk& into) const {
  if (request.peer) {
    into.uid = request.peer->uid;
    into.owner = request.peer->pid;
  }
  const auto children = flag_in(body, "withChildren");
  if (!children) return children.error();
  into.with_children = *children;
  const auto owner = body.find("ownerPid");
  if (owner == body.end()) return {};
  if (owner->is_null()) {
    into.owner = 0;
    return {};
  }
  const auto pid = number_in(body, "ownerPid", 1, 1 << 30);
  if (!pid) return pid.error();
  if (!request.peer) return Error{"ownerPid: over TCP the scheduler does not know whose it is"};
  into.owner = static_cast<int>(**pid);
  const auto user = api.world_.user_of(into.owner);
  if (!user) return Error{fmt::format("ownerPid: there is no process {}", into.owner)};
  if (!is_admin() && *user != request.peer->uid) {
    return Error{fmt::format("ownerPid: process {} is another user's", into.owner)};
  }
  into.uid = *user;
  return {};
}

Object LeaseApi::Json::answer_of(const LeaseRecord& lease, const core::Answer& answer) const {
  Object said{{"result", core::name_of(answer.outcome)}};
  if (answer.outcome == core::Outcome::Acquired) {
    said["leaseId"] = lease.name;
    said["taskType"] = lease.ask.request.task_class;
    said["gpu"] = index_of(broker(), lease.ask.request.gpu);
    said["gpuKey"] = key_of(broker(), lease.ask.request.gpu);
    said["acquiredAt"] = wall(now());
    said["queueWaitMs"] = milliseconds(answer.waited);
    said["expiresAt"] = wall(answer.expires);
  } else {
    if (answer.reason != core::LeaseReason::None) said["reason"] = core::name_of(answer.reason);
    said["queueWaitMs"] = milliseconds(answer.waited);
    said["retryAfterMs"] = milliseconds(answer.retry_after);
  }
  if (!lease.ask.trace.empty()) said["trace"] = lease.ask.trace;
  return said;
}

LeaseApi::Json::Answer LeaseApi::Json::ask(std::optional<Object> gpu) {
  auto read = body();
  if (!read) return http_error(400, read.error().message);
  const Object& body = *read;
  LeaseAsk ask;
  const auto fill = [&]() -> Result<void> {
    const auto known = only(body, {"taskType", "gpuKey", "maxWaitMs", "holdMaxMs", "busyPolicy",
                                   "hint", "ownerPid", "withChildren", "trace"});
    if (!known) return known;
    if (const auto good = take_time(body, "maxWaitMs", ask.request.max_wait); !good) return good;
    if (const auto good = take_time(body, "holdMaxMs", ask.request.hold_max, 1); !good) return good;
    if (const auto good = take_policy(body, ask.request); !good) return good;
    if (const auto good = take_hint(body, ask.request); !good) return good;
    if (const auto good = take_trace(body, ask.trace); !good) return good;
    return take_owner(body, ask);
  };
  if (const auto good = fill(); !good) return http_error(400, good.error().message);
  const auto name = text_in(body, "taskType");
  const core::TaskClass* task_class = name ? arbiter().find_class(*name) : nullptr;
  if (task_class == nullptr) {
    Object refused{{"error", name ? fmt::format("there is no class '{}'", *name)
                                  : "taskType: the request does not say its class"}};
    for (const auto& one : arbiter().config().classes) refused["classes"].push_back(one.name);
    return json_reply(400, refused);
  }
  ask.request.task_class = *name;
  if (!gpu && body.contains("gpuKey")) gpu = body["gpuKey"];
  const auto roomiest = arbiter().roomiest(*task_class, now());
  if (!gpu && !roomiest) return http_error(404, "there is no GPU");
  const Result<GpuId> chosen = gpu ? gpu_named(*gpu) : Result<GpuId>(*roomiest);
  if (!chosen) return http_error(404, chosen.error().message);
  ask.request.gpu = *chosen;

  // A lease for a service that is gone would be nobody's until its deadline.
  if (request.hung_up) return http_error(400, "the connection closed before the answer");
  const auto asked = api.leases_.ask(std::move(ask));
  if (!asked) return http_error(400, asked.error().message);
  api.asked_.emplace(call, asked->lease.id);
  if (asked->answer) return lease_reply(*asked->answer, answer_of(asked->lease, *asked->answer));
  api.calls_.emplace(asked->lease.id, call);
  return std::nullopt;
}

// --- leases ------------------------------------------------------------------------------------

Object LeaseApi::Json::view_of(const core::LeaseView& view) const {
  const LeaseRecord* record = api.leases_.find(view.lease);
  Object shown;
  const bool visible = record != nullptr && may_see(record->ask.uid);
  shown["leaseId"] = visible ? Object(record->name) : Object(nullptr);
  shown["taskType"] = view.task_class;
  shown["priority"] = view.priority;
  shown["gpu"] = index_of(broker(), view.gpu);
  shown["gpuKey"] = key_of(broker(), view.gpu);
  shown["state"] = view.preparing ? "PREPARING" : view.active ? "ACTIVE" : "WAITING";
  shown["askedAt"] = wall(view.asked);
  if (view.active && !view.preparing) {
    shown["acquiredAt"] = wall(view.acquired);
    shown["expiresAt"] = wall(view.until);
    shown["expectedEndAt"] = wall(view.expected_end);
  } else {
    shown["givesUpAt"] = wall(view.until);
  }
  if (record == nullptr) return shown;
  if (record->ask.uid) shown["uid"] = *record->ask.uid;
  if (record->ask.owner != 0) shown["pid"] = record->ask.owner;
  if (visible && !record->ask.trace.empty()) shown["trace"] = record->ask.trace;
  return shown;
}

LeaseApi::Json::Answer LeaseApi::Json::list() {
  constexpr std::int64_t kMost = 1000;
  std::int64_t limit = 200;
  if (const auto said = request.query.find("limit"); said != request.query.end()) {
    const auto number = parse_integer(said->second, 1, kMost);
    if (!number) return http_error(400, fmt::format("limit: it is not from 1 to {}", kMost));
    limit = *number;
  }
  Lists& lists = api.lists_;
  if (lists.at != now() || lists.changes != api.leases_.changes()) {
    lists = {now(), api.leases_.changes(), {}};
  }
  const bool admin = is_admin();
  const auto user = admin || !request.peer ? std::nullopt : std::optional(request.peer->uid);
  const auto [printed, is_new] = lists.replies.try_emplace({admin, user, limit});
  if (is_new) {
    auto views = arbiter().leases();
    const std::size_t total = views.size();
    views.resize(std::min(total, static_cast<std::size_t>(limit)));
    Object all = Object::array();
    for (const core::LeaseView& view : views) all.push_back(view_of(view));
    printed->second = json_reply(200, {{"leases", all}, {"total", total}});
  }
  return printed->second;
}

LeaseApi::Json::Answer LeaseApi::Json::look() {
  HttpReply refused;
  const LeaseRecord* found = lease(refused);
  const auto view = found == nullptr ? std::nullopt : arbiter().lease(found->id);
  if (!view) return refused;
  Object shown = view_of(*view);
  shown["leaseId"] = found->name;  // the caller knows it
  if (const auto why = arbiter().explain(found->id, now())) {
    shown["why"] = core::text_of(*why, now());
  }
  return json_reply(200, shown);
}

LeaseApi::Json::Answer LeaseApi::Json::release() {
  HttpReply refused;
  const LeaseRecord* found = lease(refused);
  if (found == nullptr) {
    if (refused.status == kGone) api.leases_.give_back_late(words[0]);
    return refused;
  }
  api.leases_.release(found->id);
  return HttpReply{204, "", {}};
}

LeaseApi::Json::Answer LeaseApi::Json::renew() {
  HttpReply refused;
  const LeaseRecord* found = lease(refused);
  if (found == nullptr) return refused;
  const auto read = body();
  if (!read) return http_error(400, read.error().message);
  std::optional<Duration> hold;
  if (const auto good = only(*read, {"holdMaxMs"}); !good) {
    return http_error(400, good.error().message);
  }
  if (const auto good = take_time(*read, "holdMaxMs", hold, 1); !good) {
    return http_error(400, good.error().message);
  }
  const auto until = api.leases_.renew(found->id, hold);
  if (!until) return http_error(409, until.error().message);
  return json_reply(200, {{"leaseId", found->name}, {"expiresAt", wall(*until)}});
}

// --- what people and dispatchers look at -------------------------------------------------------

LeaseApi::Json::Answer LeaseApi::Json::classes() {
  Object all = Object::array();
  const auto& counts = arbiter().counts();
  for (const core::TaskClass& one : arbiter().config().classes) {
    const auto counted = counts.find(one.name);
    all.push_back(
        {{"taskType", one.name},
         {"priority", one.priority},
         {"tenantPriority", core::tenant_priority(one.priority)},
         {"maxWaitMs", milliseconds(one.max_wait)},
         {"holdMaxMs", milliseconds(one.hold_max)},
         {"busy", core::name_of(one.busy)},
         {"pressure", core::name_of(one.pressure)},
         {"slots", one.slots ? Object(*one.slots) : Object(nullptr)},
         {"counts", counts_of(counted == counts.end() ? core::LeaseCounts{} : counted->second)}});
  }
  return json_reply(200, {{"classes", all}});
}

LeaseApi::Json::Answer LeaseApi::Json::status() {
  return HttpReply{200, api.status().body, {}};
}

LeaseApi::Json::Answer LeaseApi::Json::stream() {
  StatusFeed::User user{std::nullopt, is_admin()};
  if (request.peer) user.uid = request.peer->uid;
  auto first = api.feed_.open(call, user, now());
  if (!first) return http_error(429, "there are too many streams of the status");
  HttpReply reply{200, std::move(*first), {}};
  reply.type = "text/event-stream";
  reply.goes_on = true;
  return reply;
}

LeaseApi::Json::Answer LeaseApi::Json::config() {
  return json_reply(200, usage_config(api.world_.settings));
}

LeaseApi::Json::Answer LeaseApi::Json::change() {
  if (!is_admin()) return http_error(403, "only an administrator changes the configuration");
  const auto read = body();
  if (!read) return http_error(400, read.error().message);
  const auto texts = settings_in(*read);
  if (!texts) return http_error(400, texts.error().message);
  const auto kept = api.world_.change(*texts);
  if (!kept) return http_error(400, kept.error().message);
  auto reply = config();
  if (!*kept) {
    reply->headers.emplace_back("Warning",
                                "199 - \"done, but not kept: the state was not written\"");
  }
  return reply;
}

// --- the paths ---------------------------------------------------------------------------------

struct LeaseApi::Route {
  std::string_view method;
  std::string_view path;  // "*" stands for one word
  Json::Answer (Json::*answer)();
};

const std::vector<LeaseApi::Route>& LeaseApi::routes() {
  static const std::vector<Route> all{
      {"POST", "/v1/leases", &Json::ask_somewhere}, {"POST", "/v1/gpus/*/leases", &Json::ask_there},
      {"GET", "/v1/leases", &Json::list},           {"GET", "/v1/leases/*", &Json::look},
      {"DELETE", "/v1/leases/*", &Json::release},   {"POST", "/v1/leases/*/renew", &Json::renew},
      {"GET", "/v1/classes", &Json::classes},       {"GET", "/v1/status", &Json::status},
      {"GET", "/v1/status/stream", &Json::stream},  {"GET", "/v1/config", &Json::config},
      {"PATCH", "/v1/config", &Json::change},
  };
  return all;
}

namespace {

// The words for which "*" stands; nothing when the path is another one.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  std::vector<std::string> words;
  while (!pattern.empty() || !path.empty()) {
    if (!pattern.starts_with('/') || !path.starts_with('/')) return std::nullopt;
    pattern.remove_prefix(1);
    path.remove_prefix(1);
    const std::string_view wanted = pattern.substr(0, pattern.find('/'));
    const std::string_view word = path.substr(0, path.find('/'));
    if (wanted == "*" && !word.empty()) {
      words.emplace_back(word);
    } else if (wanted != word) {
      return std::nullopt;
    }
    pattern.remove_prefix(wanted.size());
    path.remove_prefix(word.size());
  }
  return words;
}

}  // namespace

LeaseApi::LeaseApi(Leases& leases, World world)
    : leases_(leases), world_(std::move(world)), feed_([this] { return status(); }) {
  leases_.on_answer([this](const LeaseRecord& lease, const core::Answer& answer) {
    const auto at = calls_.find(lease.id);
    if (at == calls_.end()) return;
    const HttpCall call = at->second;
    calls_.erase(at);
    const HttpRequest none;
    const HttpReply reply = lease_reply(answer, Json{*this, call, none}.answer_of(lease, answer));
    if (reply_) reply_(call, reply);
  });
  leases_.on_withdrawn([this](const LeaseRecord& lease, std::string_view reason) {
    const auto at = calls_.find(lease.id);
    if (at == calls_.end()) return;  // by ended()
    const HttpCall call = at->second;
    calls_.erase(at);
    if (reply_) reply_(call, taken_away("this request was withdrawn", reason));
  });
}

std::optional<HttpReply> LeaseApi::handle(HttpCall call, const HttpRequest& request) {
  std::string allowed;
  for (const Route& route : routes()) {
    auto words = match(route.path, request.path);
    if (!words) continue;
    if (route.method == request.method) {
      return (Json{*this, call, request, std::move(*words)}.*route.answer)();
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  if (allowed.empty()) return http_error(404, "there is nothing at this path");
  HttpReply refused = http_error(405, "this path takes " + allowed);
  refused.headers.emplace_back("Allow", allowed);
  return refused;
}

StatusText LeaseApi::status() const {
  const auto push = world_.push ? world_.push() : std::nullopt;
  return status_text({leases_.arbiter(), world_.broker, world_.wall_of, push}, world_.now());
}

void LeaseApi::ended(HttpCall call, bool sent) {
  feed_.close(call);
  const auto at = asked_.find(call);
  if (at == asked_.end()) return;
  const LeaseId lease = at->second;
  asked_.erase(at);
  if (sent || leases_.find(lease) == nullptr) return;
  calls_.erase(lease);
  leases_.release(lease);
}

}  // namespace nvshare::daemon
