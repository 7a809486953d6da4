// Any line has an answer, and every answer is one line of JSON that says whether it went well.

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "daemon/serve/control.h"

namespace {

using namespace nvshare;
using namespace nvshare::daemon;

class Nowhere final : public Outbox {
 public:
  void send(ClientId, const wire::Header&) override {}
  void hand_over(ClientId, const wire::Header&, int) override {}
  void tell_run(TenantId, const wire::Header&) override {}
  void disconnect(ClientId, std::string_view) override {}
  void end(ClientId) override {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Nowhere outbox;
  Log log(Level::Error, [](std::string_view) {});
  Settings settings;
  const Processes processes("/nowhere");
  Broker broker(settings.core, Time{}, outbox, log);
  Kept kept(log);
  Changes changes(broker, settings, kept, log);
  Control control(broker, settings, changes, processes, {});
  (void)broker.begin_run({TenantKind::Run, "train", 0}, {}, Time{});
  const std::string answer =
      control.answer(std::string_view(reinterpret_cast<const char*>(data), size), Time{});
  if (answer.find('\n') != answer.npos) std::abort();
  const auto parsed = nlohmann::json::parse(answer, nullptr, false);
  if (!parsed.is_object() || !parsed["ok"].is_boolean()) std::abort();
  if (!core::problems(broker.core().config()).empty()) std::abort();
  return 0;
}
