// Rounding to an element format without table, branch or cast: steps 10 and 11 of the reference.
//
// Round to nearest even: adding 2^23 steps of the number's own binade pushes the discarded bits out of the FP32
// mantissa, where the hardware rounds them to nearest even; subtracting gives the number back. Below the smallest
// normal number the step stays that of the subnormals.
// Stochastic: add r/256 of a step, r from 0 to 255, and cut to the step of the sum, as the cvt.rs instruction
// does, so that P(up) = floor(256 * fraction) / 256.
#pragma once
#include "vectors.hpp"

namespace repro {

struct E2M1 {
    static constexpr int MANTISSA_BITS = 1;
    static constexpr int32_t MIN_NORMAL_BITS = 0x3f800000;  // 1
    static constexpr float MAX = 6.0f;
    static constexpr float MIN_STEP = 0.5f;
    static constexpr bool KEEPS_NEGATIVE_ZERO = false;  // -0.0 -> code 0, a negative that rounds to zero -> code 8
};

struct E4M3 {
    static constexpr int MANTISSA_BITS = 3;
    static constexpr int32_t MIN_NORMAL_BITS = 0x3c800000;  // 2^-6
    static constexpr float MAX = 448.0f;
    static constexpr float MIN_STEP = 0.001953125f;  // 2^-9
    static constexpr bool KEEPS_NEGATIVE_ZERO = true;
};

// Nearest number of the format to a magnitude 0 <= a <= MAX, ties to even.
template <class Element>
static inline vf round_magnitude(vf a) {
    const vi binade = max_bits((vi)a, splat(Element::MIN_NORMAL_BITS)) & EXPONENT;
    const vf pusher = (vf)(binade + ((23 - Element::MANTISSA_BITS) << 23));
    return (a + pusher) - pusher;
}

// Stochastically rounded magnitude 0 <= a <= MAX; random holds 0..255 a lane.
template <class Element>
static inline vf round_magnitude(vf a, vi random) {
    const vi binade = max_bits((vi)a, splat(Element::MIN_NORMAL_BITS)) & EXPONENT;
    const vf step = (vf)(binade - (Element::MANTISSA_BITS << 23));
    const vf share = __builtin_convertvector(random, vf) * (1.0f / 256.0f);
    const vf sum = a + share * step;  // the product is exact, so this is one rounding as in a fused multiply-add
    const vf cut = (vf)((vi)sum & ~((1 << (23 - Element::MANTISSA_BITS)) - 1));
    vf low;  // below the smallest normal number: whole subnormal steps
    if constexpr (Element::MANTISSA_BITS == 1)
        low = (vf)(sum < Element::MIN_STEP ? vi{} : (vi)splat(Element::MIN_STEP));
    else
        low = __builtin_convertvector(__builtin_convertvector(sum * (1.0f / Element::MIN_STEP), vi), vf) *
              Element::MIN_STEP;
    const vi is_low = (vi)sum < splat(Element::MIN_NORMAL_BITS);
    return (vf)min_bits(is_low ? (vi)low : (vi)cut, (vi)splat(Element::MAX));
}

// The sign that the code of y carries.
template <class Element>
static inline vi sign_of(vf y) {
    if constexpr (!Element::KEEPS_NEGATIVE_ZERO) y = y + 0.0f;  // -0.0 + 0.0 is +0.0
    return (vi)y & SIGN_BIT;
}

}  // namespace repro
