#include "sections.h"

namespace nvshare::conformance {

const std::vector<Section>& all_sections() {
  static const std::vector<Section> sections = {
      {"init", init, false},
      {"no_context", no_context, false},
      {"devices", devices, false},
      {"attributes", attributes, false},
      {"primary_context", primary_context, false},
      {"contexts", contexts, false},
      {"threads", threads, false},
      {"errors", errors, false},
      {"resolve", resolve, false},
      {"modules", modules, false},
      {"libraries", libraries, false},
      {"launches", launches, false},
      {"streams", streams, false},
      {"events", events, false},
      {"stream_operations", stream_operations, false},
      {"capture", capture, false},
      {"capture_streams", capture_streams, false},
      {"capture_modes", capture_modes, false},
      {"capture_safety", capture_safety, false},
      {"graphs", graphs, false},
      {"graph_updates", graph_updates, false},
      {"graph_memory_nodes", graph_memory_nodes, false},
      {"memory", memory, false},
      {"managed", managed, false},
      {"copies", copies, false},
      {"memsets", memsets, false},
      {"pools", pools, false},
      {"virtual_memory", virtual_memory, false},
      {"host_memory", host_memory, false},
      {"arrays", arrays, false},
      {"pointers", pointers, false},
      {"ipc", ipc, false},
      {"others", others, false},
      {"null_handles", null_handles, false},
      {"gone_streams", gone_streams, false},
      {"gone_events", gone_events, false},
      {"gone_modules", gone_modules, false},
      {"gone_contexts", gone_contexts, false},
      {"gone_graphs", gone_graphs, false},
      {"gone_pools_and_arrays", gone_pools_and_arrays, false},
      {"faults", faults, false},
      {"probe_device", probe_device, true},
      {"probe_versions", probe_versions, true},
      {"probe_memory", probe_memory, true},
      {"probe_context_memory", probe_context_memory, true},
      {"probe_times", probe_times, true},
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
