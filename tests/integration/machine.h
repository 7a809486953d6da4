#pragma once

#include "base/units.h"

// What the machine that tests run on did beside them. Times are since it was started; 0 where the
// kernel does not tell.
namespace nvshare::integration {

// For how long somebody waited for a processor.
Duration waited_for_processors();

// How much time of its processors was given to other machines by the host.
Duration stolen_from_processors();

// The part of the processors' time that was stolen since `before`, which was so long ago.
double stolen_part(Duration before, Duration ago);

// Beyond this part nothing that takes time can be measured.
inline constexpr double kStolenTooMuch = 0.01;

}  // namespace nvshare::integration
