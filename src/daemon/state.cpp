#include "daemon/state.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/config.h"

namespace nvshare::daemon {
namespace {

using json = nlohmann::ordered_json;

// The first line is "nvshare-state VERSION LENGTH CHECKSUM", both of the body, which follows.
constexpr std::string_view kMagic = "nvshare-state ";
constexpr std::size_t kMostRecords = 65536;  // of one kind
constexpr std::size_t kLongestText = 4096;   // of a name, a path or a value
constexpr std::string_view kTorn = "is torn or damaged";

// FNV-1a: finds damage, not malice. Nobody else may write the file.
std::uint64_t checksum(std::string_view text) {
  std::uint64_t sum = 14695981039346656037ull;
  for (const char c : text) {
    sum ^= static_cast<unsigned char>(c);
    sum *= 1099511628211ull;
  }
  return sum;
}

json of(const Declaration& limits) {
  json all = json::object();
  if (limits.cores) all["cores"] = *limits.cores;
  if (limits.memory) all["memory"] = limits.memory->count;
  if (limits.priority) all["priority"] = *limits.priority;
  return all;
}

json of(const LiveTenant& tenant) {
  return {{"kind", name_of(tenant.is.kind)}, {"name", tenant.is.name},  {"uid", tenant.is.uid},
          {"limits", of(tenant.limits)},     {"paused", tenant.paused}, {"seen", tenant.seen}};
}

json of(const KeptRun& run) {
  return {{"name", run.name},
          {"uid", run.uid},
          {"pid", run.pid},
          {"started", run.started},
          {"parent", run.parent},
          {"cgroup", run.cgroup},
          {"limits", of(declare_all(run.limits))},
          {"backend", static_cast<std::uint32_t>(run.backend)},
          {"flags", run.flags}};
}

json of(const KeptLease& lease) {
  json all{{"name", lease.name},
           {"class", lease.task_class},
           {"gpu", nvshare::to_text(lease.gpu)},
           {"pid", lease.pid},
           {"started", lease.started},
           {"with_children", lease.with_children},
           {"trace", lease.trace},
           {"acquired", lease.acquired.time_since_epoch().count()},
           {"expires", lease.expires.time_since_epoch().count()}};
  if (lease.uid) all["uid"] = *lease.uid;
  if (lease.hold) all["hold"] = lease.hold->count();
  return all;
}

// Reads values of one object, and remembers whether any was missing or wrong.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object) {
    if (!object.is_object()) good_ = false;
  }

  bool good() const { return good_; }
  void fail() { good_ = false; }

  const json* find(const char* key) {
    const auto at = good_ ? object_.find(key) : object_.end();
    if (good_ && at != object_.end()) return &*at;
    good_ = false;
    return nullptr;
  }
  std::string text(const char* key) {
    const json* value = find(key);
    if (value != nullptr && value->is_string()) {
      auto text = value->get<std::string>();
      if (text.size() <= kLongestText) return text;
    }
    good_ = false;
    return {};
  }
  bool boolean(const char* key) {
    const json* value = find(key);
    if (value != nullptr && value->is_boolean()) return value->get<bool>();
    good_ = false;
    return false;
  }
  template <typename T>
  T number(const char* key, T low, T high) {
    const json* value = find(key);
    if (value != nullptr) {
      if (const auto number = as_number<T>(*value, low, high)) return *number;
    }
    good_ = false;
    return {};
  }
  template <typename T>
  std::optional<T> optional_number(const char* key, T low, T high) {
    if (!good_ || object_.find(key) == object_.end()) return std::nullopt;
    return number<T>(key, low, high);
  }
  // Adds to `all` what `read` makes of each item of a list. Answers how many made no sense.
  template <typename Record, typename Read>
  int each(const char* key, std::vector<Record>& all, Read read) {
    const json* list = find(key);
    if (list == nullptr || !list->is_array() || list->size() > kMostRecords) {
      fail();
      return 0;
    }
    int left_out = 0;
    for (const json& item : *list) {
      Reader one(item);
      Record record = read(one);
      if (one.good()) {
        all.push_back(std::move(record));
      } else {
        ++left_out;
      }
    }
    return left_out;
  }

 private:
  template <typename T>
  static std::optional<T> as_number(const json& value, T low, T high) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned()) {
      const auto number = value.get<std::uint64_t>();
      if (number > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return std::nullopt;
      const auto found = static_cast<T>(number);
      return found >= low && found <= high ? std::optional<T>(found) : std::nullopt;
    }
    const auto number = value.get<std::int64_t>();
    if (number < 0 && !std::numeric_limits<T>::is_signed) return std::nullopt;
    if (number < static_cast<std::int64_t>(std::numeric_limits<T>::min())) return std::nullopt;
    const auto found = static_cast<T>(number);
    return found >= low && found <= high ? std::optional<T>(found) : std::nullopt;
  }

  const json& object_;
  bool good_ = true;
};

Declaration read_declaration(Reader& reader) {
  Declaration limits;
  const json* found = reader.find("limits");
  if (found == nullptr) return limits;
  Reader values(*found);
  limits.cores = values.optional_number<int>("cores", 1, core::kNoCoreLimit);
  const auto memory = values.optional_number<std::int64_t>("memory", 0, core::kMostMemory.count);
  if (memory) limits.memory = Bytes{*memory};
  limits.priority =
      values.optional_number<int>("priority", core::kLowestPriority, core::kHighestPriority);
  if (!values.good()) reader.fail();
  return limits;
}

std::optional<TenantKind> kind_by_name(std::string_view name) {
  for (const TenantKind kind : {TenantKind::Run, TenantKind::Container, TenantKind::User,
                                TenantKind::Pod, TenantKind::Cgroup}) {
    if (name_of(kind) == name) return kind;
  }
  return std::nullopt;
}

LiveTenant read_tenant(Reader& reader) {
  LiveTenant tenant;
  const auto kind = kind_by_name(reader.text("kind"));
  if (!kind) reader.fail();
  tenant.is.kind = kind.value_or(TenantKind::User);
  tenant.is.name = reader.text("name");
  tenant.is.uid = reader.number<std::uint32_t>("uid", 0, UINT32_MAX);
  tenant.limits = read_declaration(reader);
  tenant.paused = reader.boolean("paused");
  tenant.seen = reader.number<WallTime>("seen", 0, std::numeric_limits<WallTime>::max());
  if (tenant.is.name.empty()) reader.fail();
  return tenant;
}

KeptRun read_run(Reader& reader) {
  KeptRun run;
  run.name = reader.text("name");
  run.uid = reader.number<std::uint32_t>("uid", 0, UINT32_MAX);
  run.pid = reader.number<int>("pid", 1, INT32_MAX);
  run.started = reader.number<std::uint64_t>("started", 0, UINT64_MAX);
  run.parent = reader.text("parent");
  run.cgroup = reader.text("cgroup");
  const Declaration limits = read_declaration(reader);
  if (!limits.cores || !limits.memory || !limits.priority) reader.fail();
  run.limits.core_percent = limits.cores.value_or(core::kNoCoreLimit);
  if (limits.memory && limits.memory->count > 0) run.limits.memory = limits.memory;
  run.limits.priority = limits.priority.value_or(0);
  run.backend = static_cast<wire::Backend>(reader.number<std::uint32_t>(
      "backend", 0, static_cast<std::uint32_t>(wire::Backend::Managed)));
  run.flags = reader.number<std::uint64_t>("flags", 0, UINT64_MAX);
  if (run.name.empty()) reader.fail();
  return run;
}

KeptLease read_lease(Reader& reader) {
  KeptLease lease;
  lease.name = reader.text("name");
  lease.task_class = reader.text("class");
  const auto gpu = parse_uuid(reader.text("gpu"));
  if (!gpu || lease.name.empty()) reader.fail();
  lease.gpu = gpu.value_or(Uuid{});
  lease.uid = reader.optional_number<std::uint32_t>("uid", 0, UINT32_MAX);
  lease.pid = reader.number<int>("pid", 0, INT32_MAX);
  lease.started = reader.number<std::uint64_t>("started", 0, UINT64_MAX);
  lease.with_children = reader.boolean("with_children");
  lease.trace = reader.text("trace");
  const auto hold = reader.optional_number<std::int64_t>("hold", 1, INT64_MAX);
  if (hold) lease.hold = Duration{*hold};
  const auto time = [&](const char* key) {
    return Time{Duration{reader.number<std::int64_t>(key, 0, INT64_MAX)}};
  };
  lease.acquired = time("acquired");
  lease.expires = time("expires");
  return lease;
}

// Answers how many of them made no sense.
int read_settings(Reader& reader, std::map<std::string, std::string>& settings) {
  const json* found = reader.find("settings");
  if (found == nullptr || !found->is_object() || found->size() > kMostRecords) {
    reader.fail();
    return 0;
  }
  int left_out = 0;
  for (const auto& [name, value] : found->items()) {
    const bool good = value.is_string() && name.size() <= kLongestText &&
                      value.get_ref<const std::string&>().size() <= kLongestText;
    if (good) settings[name] = value.get<std::string>();
    left_out += !good;
  }
  return left_out;
}

// A number at the front of `text`, which is then behind it and behind the letter that ends it.
template <typename T>
std::optional<T> take_number(std::string_view& text, char end, int base) {
  T number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  const auto used = static_cast<std::size_t>(stop - text.data());
  if (error != std::errc{} || used >= text.size() || text[used] != end) return std::nullopt;
  text.remove_prefix(used + 1);
  return number;
}

// The body, when it is whole.
Result<std::string_view> open_seal(std::string_view text) {
  const Error torn{std::string(kTorn)};
  if (text.substr(0, kMagic.size()) != kMagic) return torn;
  text.remove_prefix(kMagic.size());
  const auto version = take_number<int>(text, ' ', 10);
  if (!version) return torn;
  if (*version > kStateVersion) {
    return Error{fmt::format("is of version {}, which this scheduler does not know", *version)};
  }
  const auto length = take_number<std::size_t>(text, ' ', 10);
  if (!length) return torn;
  const auto sum = take_number<std::uint64_t>(text, '\n', 16);
  if (!sum || text.size() != *length || checksum(text) != *sum) return torn;
  return text;
}

}  // namespace

std::string sealed(std::string_view body) {
  return fmt::format("{}{} {} {:016x}\n{}", kMagic, kStateVersion, body.size(), checksum(body),
                     body);
}

std::string to_text(const State& state) {
  json tenants = json::array();
  for (const LiveTenant& one : state.tenants) tenants.push_back(of(one));
  json runs = json::array();
  for (const KeptRun& one : state.runs) runs.push_back(of(one));
  json leases = json::array();
  for (const KeptLease& one : state.leases) leases.push_back(of(one));
  json settings = json::object();
  for (const auto& [name, value] : state.settings) settings[name] = value;
  const json whole{{"boot", state.boot},
                   {"scheduling", state.scheduling},
                   {"settings", std::move(settings)},
                   {"tenants", std::move(tenants)},
                   {"runs", std::move(runs)},
                   {"leases", std::move(leases)}};
  return sealed(whole.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

Result<State> parse_state(std::string_view text) {
  const auto body = open_seal(text);
  if (!body) return body.error();
  const json whole = json::parse(*body, nullptr, false);
  Reader reader(whole);
  State state;
  state.boot = reader.text("boot");
  state.scheduling = reader.boolean("scheduling");
  state.left_out = read_settings(reader, state.settings);
  state.left_out += reader.each("tenants", state.tenants, read_tenant) +
                    reader.each("runs", state.runs, read_run);
  // Earlier schedulers wrote none.
  if (whole.contains("leases")) state.left_out += reader.each("leases", state.leases, read_lease);
  if (!reader.good()) return Error{"has values that make no sense"};
  return state;
}

}  // namespace nvshare::daemon
