// The inner loop of the tile encoder, one instance per (vector width, bits in, bits out).
//
// A 16-bit state is [k: C bits][g: 16-A-C bits][b: A bits], where A is the number of new bits of
// this value and C of the next. Node entering: state >> A = (k, g). Node leaving: low 16-C bits
// = (g, b). So the step falls apart into groups g of 2^C entering and 2^A leaving nodes, and
//   out[g, b] = min over k of ((codebook[k, g, b] - target)^2 + in[k, g]).
// The codebook is stored in the order in which the loop reads it (arrange_codebook), so that it
// streams; the winner k is not kept: whoever traces back finds it again from the costs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tensorfold::exl3 {

using ViterbiStep = void (*)(const float* in, float* out, const float* table, float target);

// The step for A new bits now and C bits next, `lanes` (4, 8, 16) floats wide; nullptr when this
// processor or the format has no such step. (A, C): 1..8 equal, or 1.5, 2.5, 3.5 bits' pairs.
ViterbiStep viterbi_step(int lanes, int a_bits, int c_bits);

// codebook: fp32 [65536] by state. out: fp32 [65536] in the order of that step's reads.
void arrange_codebook(int lanes, int a_bits, int c_bits, std::span<const float> codebook,
                      float* out);

}  // namespace tensorfold::exl3
