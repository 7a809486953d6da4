#include "interposer/catch/fronts.h"

#include "interposer/catch/driver.h"
#include "interposer/catch/hooks.h"
#include "interposer/catch/nvml.h"

namespace nvshare::interposer::catching {
namespace {

constexpr Front kDriver{is_driver, use_driver};
constexpr Front kNvml{is_nvml, use_nvml};

}  // namespace

Stand find_stand(const char* symbol) {
  if (const Function* row = find_symbol(symbol)) return {&kDriver, hook(row->id)};
  return {&kNvml, nvml_hook(symbol)};
}

bool has_front(const Object& object) {
  return is_driver(object) || is_nvml(object);
}

}  // namespace nvshare::interposer::catching
