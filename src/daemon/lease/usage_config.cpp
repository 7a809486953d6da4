#include "daemon/lease/usage_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/suggest.h"

namespace nvshare::daemon {
namespace {

using Json = nlohmann::ordered_json;

enum class Unit { Milliseconds, Percent, Truth, Count };

// One value of the configuration: where it stands in JSON, and the setting that it is.
struct JsonField {
  std::string_view path;
  std::string_view flat;  // the requirement's other name, at the top; empty: none
  std::string_view setting;
  Unit unit;
};
constexpr std::array kJsonFields{
    JsonField{"gpuUsage.sampleIntervalMs", "usageSampleIntervalMs", "usage_sample_interval",
              Unit::Milliseconds},
    JsonField{"gpuUsage.cacheTtlMs", "usageCacheTtlMs", "usage_cache_ttl", Unit::Milliseconds},
    JsonField{"gpuUsage.baseHighWater", "gpuUsageHighWater", "usage_high_water", Unit::Percent},
    JsonField{"gpuUsage.baseLowWater", "gpuUsageLowWater", "usage_low_water", Unit::Percent},
    JsonField{"gpuUsage.dynamicAdjustment.enabled", "", "usage_boosts", Unit::Truth},
    JsonField{"gpuUsage.dynamicAdjustment.longAudioThresholdMs", "longAudioThresholdMs",
              "usage_long_audio", Unit::Milliseconds},
    JsonField{"gpuUsage.dynamicAdjustment.highWaterBoost", "highWaterBoost", "usage_high_boost",
              Unit::Percent},
    JsonField{"gpuUsage.dynamicAdjustment.lowWaterBoost", "lowWaterBoost", "usage_low_boost",
              Unit::Percent},
    JsonField{"gpuUsage.dynamicAdjustment.adjustmentTtlMs", "adjustmentTtlMs", "usage_boost_lasts",
              Unit::Milliseconds},
    JsonField{"leases.slots", "", "lease_slots", Unit::Count},
    JsonField{"leases.queue", "", "lease_queue", Unit::Count},
};

// A setting's text as a value.
Json value_of(const JsonField& field, const std::string& text) {
  switch (field.unit) {
    case Unit::Truth:
      return text == "true";
    case Unit::Milliseconds: {
      const auto time = parse_duration(text);
      return time ? std::chrono::duration_cast<std::chrono::milliseconds>(*time).count() : 0;
    }
    case Unit::Percent:
    case Unit::Count:
      return Json::parse(text, nullptr, false);
  }
  return {};
}

Result<std::string> text_of(const JsonField& field, const std::string& name, const Json& value) {
  const auto wrong = [&](std::string_view what) {
    return Error{fmt::format("{}: {} is not {}", name, value.dump(), what)};
  };
  switch (field.unit) {
    case Unit::Truth:
      if (!value.is_boolean()) return wrong("true or false");
      return std::string(value.get<bool>() ? "true" : "false");
    case Unit::Milliseconds: {
      // Longer than any of these may be; what is above leaves the range of a time.
      constexpr std::int64_t kMost = 1'000'000'000;
      if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
          value.get<double>() > kMost) {
        return wrong("a whole number of milliseconds");
      }
      return fmt::format("{}ms", value.get<std::int64_t>());
    }
    case Unit::Percent:
      if (!value.is_number()) return wrong("a number");
      return fmt::to_string(value.get<double>());
    case Unit::Count:
      if (!value.is_number_integer()) return wrong("a whole number");
      return value.dump();
  }
  return wrong("understood");
}

const JsonField* find_field(const std::string& path) {
  const auto at = std::ranges::find_if(kJsonFields, [&](const JsonField& field) {
    return field.path == path || (!field.flat.empty() && field.flat == path);
  });
  return at == kJsonFields.end() ? nullptr : &*at;
}

std::string suggestion(const std::string& path) {
  std::vector<std::string_view> names;
  for (const JsonField& field : kJsonFields) {
    names.push_back(field.path);
    if (!field.flat.empty()) names.push_back(field.flat);
  }
  return did_you_mean(path, names);
}

// Fields lie two objects deep at most.
Result<void> collect(const Json& object, const std::string& path, SettingTexts& found) {
  for (const auto& [key, value] : object.items()) {
    const std::string whole = path.empty() ? key : path + "." + key;
    const bool above = std::ranges::any_of(
        kJsonFields, [&](const JsonField& field) { return field.path.starts_with(whole + "."); });
    if (above) {
      if (!value.is_object()) return Error{fmt::format("{}: it is not an object", whole)};
      if (const auto good = collect(value, whole, found); !good) return good;
      continue;
    }
    // A dot stands between objects, never in a key.
    const JsonField* field = key.find('.') == key.npos ? find_field(whole) : nullptr;
    if (field == nullptr) {
      return Error{fmt::format("there is no '{}' to configure{}", whole, suggestion(whole))};
    }
    const auto same = [&](const auto& one) { return one.first == field->setting; };
    if (std::ranges::any_of(found, same)) return Error{fmt::format("{}: it is said twice", whole)};
    auto text = text_of(*field, whole, value);
    if (!text) return text.error();
    found.emplace_back(field->setting, std::move(*text));
  }
  return {};
}

}  // namespace

Json usage_config(const Settings& settings) {
  Json config = Json::object();
  for (const JsonField& field : kJsonFields) {
    std::string pointer = "/" + std::string(field.path);
    std::ranges::replace(pointer, '.', '/');
    config[Json::json_pointer(pointer)] = value_of(field, daemon::text_of(settings, field.setting));
  }
  return config;
}

Result<SettingTexts> settings_in(const Json& change) {
  SettingTexts found;
  if (!change.is_object()) return Error{"the configuration is an object"};
  if (const auto good = collect(change, "", found); !good) return good.error();
  return found;
}

}  // namespace nvshare::daemon
