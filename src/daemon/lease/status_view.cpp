#include "daemon/lease/status_view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace nvshare::daemon {
namespace {

using Object = nlohmann::ordered_json;

constexpr const char* kAge = "gpu_usage_cache_age_ms";

Object view_of(const StatusSources& of, GpuId gpu, Time now) {
  Object shown{{"gpu", index_of(of.broker, gpu)}, {"gpuKey", key_of(of.broker, gpu)}};
  const auto view = of.arbiter.gpu(gpu, now);
  if (!view) return shown;
  shown["gpu_admission_state"] = core::name_of(view->state);
  shown["gpu_usage"] = view->usage ? Object(*view->usage) : Object(nullptr);
  shown[kAge] = view->age ? Object(milliseconds(*view->age)) : Object(nullptr);
  shown["gpu_queue_len"] = view->waiting;
  shown["active_leases"] = view->active;
  shown["lease_slots"] = of.arbiter.config().slots;
  shown["high_water"] = view->marks.high;
  shown["low_water"] = view->marks.low;
  shown["raised_until"] =
      view->raised_until ? Object(utc_text(of.wall_of(*view->raised_until))) : Object(nullptr);
  return shown;
}

Object view_of(const std::optional<PushCounts>& push) {
  if (!push) return nullptr;
  return {{"delivered", push->delivered}, {"failed", push->failed}, {"failing", push->failing}};
}

}  // namespace

std::int64_t milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

std::string utc_text(std::int64_t wall) {
  const auto seconds = static_cast<std::time_t>(wall / 1000);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds), wall % 1000);
}

int index_of(const Broker& broker, GpuId gpu) {
  const auto& gpus = broker.gpus();
  return static_cast<int>(std::distance(gpus.begin(), gpus.find(gpu)));
}

std::string key_of(const Broker& broker, GpuId gpu) {
  return nvshare::to_text(broker.gpus().at(gpu).uuid);
}

nlohmann::ordered_json counts_of(const core::LeaseCounts& counts) {
  return {{"acquired", counts.acquired},    {"timedOut", counts.timed_out},
          {"skipped", counts.skipped},      {"fellBack", counts.fell_back},
          {"queueFull", counts.queue_full}, {"revoked", counts.revoked},
          {"released", counts.released},    {"queueWaitMsTotal", milliseconds(counts.waited)}};
}

std::string text_of(const nlohmann::ordered_json& body) {
  return body.dump(-1, ' ', false, Object::error_handler_t::replace) + "\n";
}

StatusText status_text(const StatusSources& of, Time now) {
  Object gpus = Object::array();
  for (const auto& [id, gpu] : of.broker.gpus()) gpus.push_back(view_of(of, id, now));
  Object classes = Object::object();
  for (const auto& [name, counts] : of.arbiter.counts()) classes[name] = counts_of(counts);
  Object status{{"time", utc_text(of.wall_of(now))},
                {"gpus", std::move(gpus)},
                {"classes", std::move(classes)},
                {"status_push", view_of(of.push)}};
  StatusText text{text_of(status), {}};
  status.erase("time");
  // Each push changes its own counts, and would be a reason for the next one.
  status.erase("status_push");
  for (Object& gpu : status["gpus"]) gpu.erase(kAge);
  text.essence = text_of(status);
  return text;
}

}  // namespace nvshare::daemon
