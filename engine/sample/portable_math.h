// exp and log in fp64 from additions, multiplications and divisions alone, so that a sampled token
// is the same on every processor and with every C library: libm's last bits are not specified.
//
// Within 2 units in the last place of the exact value over the ranges below (tested); each is a
// pure function of its argument's bits.
#pragma once

namespace tensorfold {

// e^x. Below -745.2: 0. Above 709.7: infinity. NaN gives NaN.
double portable_exp(double x);

// ln x for x > 0, subnormals included. 0: -infinity. Below 0 or NaN: NaN. Infinity: infinity.
double portable_log(double x);

}  // namespace tensorfold
