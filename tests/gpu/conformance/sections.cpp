#include "sections.h"

namespace nvshare::conformance {

const std::vector<Section>& all_sections() {
  static const std::vector<Section> sections = {
      {"init", init},
      {"no_context", no_context},
      {"devices", devices},
      {"attributes", attributes},
      {"primary_context", primary_context},
      {"contexts", contexts},
      {"threads", threads},
      {"errors", errors},
      {"resolve", resolve},
      {"modules", modules},
      {"libraries", libraries},
      {"launches", launches},
      {"streams", streams, Company::kNone},
      {"events", events, Company::kNone},
      {"stream_operations", stream_operations},
      {"capture", capture},
      {"capture_streams", capture_streams},
      {"capture_modes", capture_modes},
      {"capture_safety", capture_safety},
      {"graphs", graphs},
      {"graph_updates", graph_updates},
      {"graph_memory_nodes", graph_memory_nodes},
      {"memory", memory, Company::kNone},
      {"managed", managed},
      {"copies", copies},
      {"memsets", memsets},
      {"pools", pools},
      {"virtual_memory", virtual_memory, Company::kNone},
      {"host_memory", host_memory},
      {"arrays", arrays},
      {"pointers", pointers},
      {"ipc", ipc},
      {"others", others},
      {"null_handles", null_handles},
      {"gone_streams", gone_streams},
      {"gone_events", gone_events},
      {"gone_modules", gone_modules},
      {"gone_contexts", gone_contexts},
      {"gone_graphs", gone_graphs},
      {"gone_pools_and_arrays", gone_pools_and_arrays},
      {"faults", faults, Company::kNone},
      {"probe_device", probe_device, Company::kNone, true},
      {"probe_versions", probe_versions, Company::kNone, true},
      {"probe_memory", probe_memory, Company::kNone, true},
      {"probe_context_memory", probe_context_memory, Company::kNone, true},
      {"probe_times", probe_times, Company::kNone, true},
  };
  return sections;
}

const std::vector<Helper>& all_helpers() {
  static const std::vector<Helper> helpers = {
      {"open_memory", ipc_open_memory},
      {"open_event", ipc_open_event},
      {"import_memory", ipc_import_memory},
      {"import_pool", ipc_import_pool},
      {"set_without_access", fault_set_without_access},
      {"copy_without_access", fault_copy_without_access},
      {"copy_from_reserved", fault_copy_from_reserved},
      {"set_reserved", fault_set_reserved},
      {"copy_after_unmap", fault_copy_after_unmap},
      {"copy_over_the_end", fault_copy_over_the_end},
      {"write_to_read_only", fault_write_to_read_only},
      {"kernel", fault_kernel},
      {"created_context", fault_created_context},
  };
  return helpers;
}

}  // namespace nvshare::conformance
