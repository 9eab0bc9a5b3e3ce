// exp and log that are the same everywhere; a GPU samples with them, too.
#pragma once

#include "kernels/portable_math.h"  // IWYU pragma: export
