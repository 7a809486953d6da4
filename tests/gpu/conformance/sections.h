#pragma once

#include <string>
#include <vector>

#include "run.h"

namespace nvshare::conformance {

// Whether other sections may use the card at the same time.
enum class Company { kAny, kNone };

// A part of the program that runs in a process of its own.
struct Section {
  const char* name;
  void (*run)(Run&);
  Company company = Company::kAny;
  bool probe = false;  // only with --probe: facts about a driver, no part of the comparison
};

using Arguments = std::vector<std::string>;

// What a section has done in yet another process.
struct Helper {
  const char* name;
  void (*run)(Run&, const Arguments&);
};

const std::vector<Section>& all_sections();
const std::vector<Helper>& all_helpers();

void init(Run& run);
void no_context(Run& run);
void devices(Run& run);
void attributes(Run& run);
void primary_context(Run& run);
void contexts(Run& run);
void threads(Run& run);
void errors(Run& run);
void resolve(Run& run);
void modules(Run& run);
void libraries(Run& run);
void launches(Run& run);
void streams(Run& run);
void events(Run& run);
void stream_operations(Run& run);
void capture(Run& run);
void capture_streams(Run& run);
void capture_modes(Run& run);
void capture_safety(Run& run);
void graphs(Run& run);
void graph_updates(Run& run);
void graph_memory_nodes(Run& run);
void memory(Run& run);
void managed(Run& run);
void copies(Run& run);
void memsets(Run& run);
void pools(Run& run);
void virtual_memory(Run& run);
void host_memory(Run& run);
void arrays(Run& run);
void pointers(Run& run);
void ipc(Run& run);
void others(Run& run);
void null_handles(Run& run);
void gone_streams(Run& run);
void gone_events(Run& run);
void gone_modules(Run& run);
void gone_contexts(Run& run);
void gone_graphs(Run& run);
void gone_pools_and_arrays(Run& run);
void faults(Run& run);

void probe_device(Run& run);
void probe_versions(Run& run);
void probe_memory(Run& run);
void probe_times(Run& run);

void probe_context_memory(Run& run);

void ipc_open_memory(Run& run, const Arguments& arguments);
void ipc_open_event(Run& run, const Arguments& arguments);
void ipc_import_memory(Run& run, const Arguments& arguments);
void ipc_import_pool(Run& run, const Arguments& arguments);
void fault_set_without_access(Run& run, const Arguments& arguments);
void fault_copy_without_access(Run& run, const Arguments& arguments);
void fault_copy_from_reserved(Run& run, const Arguments& arguments);
void fault_set_reserved(Run& run, const Arguments& arguments);
void fault_copy_after_unmap(Run& run, const Arguments& arguments);
void fault_copy_over_the_end(Run& run, const Arguments& arguments);
void fault_write_to_read_only(Run& run, const Arguments& arguments);
void fault_kernel(Run& run, const Arguments& arguments);
void fault_created_context(Run& run, const Arguments& arguments);

}  // namespace nvshare::conformance
