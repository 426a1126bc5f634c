/* Owns the time that a simulation sets for the whole process. */
#include "base/wan_clock.h"

uint64_t wan_simulated_us;
