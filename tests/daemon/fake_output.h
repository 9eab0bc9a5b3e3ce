// OutputStream over the fake engine's tokens: bytes, a think mark and call marks.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace tensorfold {

std::unique_ptr<OutputStream> make_fake_output(const OutputOptions& options);

}  // namespace tensorfold
