// Noise for sampling; a GPU draws with the same.
#pragma once

#include "kernels/sample_noise.h"  // IWYU pragma: export
