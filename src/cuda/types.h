#pragma once

// Everything that the signatures in functions.def speak of.
#include "cuda/basic_types.h"
#include "cuda/structs_execution.h"
#include "cuda/structs_graph.h"
#include "cuda/structs_memory.h"
