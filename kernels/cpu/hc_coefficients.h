// The hyper-connection coefficients of one row from its mixes (kernels/hc_step.h, part 3).
#pragma once

namespace tensorfold::cpu {

// mixes, base [(2 + n) n]; scale [3]; pre, post [n]; comb [n][n] as [j][k].
void hc_coefficients(const float* mixes, const float* scale, const float* base, int n, int iters,
                     float eps, float* pre, float* post, float* comb);

}  // namespace tensorfold::cpu
