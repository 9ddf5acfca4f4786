// Scales of blocks: from block amax to the encode factor and the decode scale, the order of FP32 operations of
// repro/numerics/scaling.py (Transformer Engine >= 2.14, or the paper's Appendix B for two_level "paper").
#pragma once
#include <algorithm>

#include "rounding.hpp"

namespace repro {

enum ScaleRule : int32_t {
    TWO_LEVEL_TE = 0,     // E4M3 scale relative to the tensor's amax, 1/6 folded into the encode scale
    TWO_LEVEL_PAPER = 1,  // the same with (amax / 6) * s_enc as printed in Appendix B
    POWER_OF_TWO_UP = 2,  // 2^ceil(log2(amax / element max)), exponent within +-127
    AMAX_OVER_MAX = 3,    // amax / element max in FP32
};

// FP32 factors of the whole tensor that a two-level format needs; step 6 of the reference.
struct TensorScale {
    float encode = 1.0f;
    float decode = 1.0f;
    float dequant = 1.0f;  // amax / tensor_max: (code value x block scale) times this is the value (TE's tests)
    float gemm = 1.0f;     // the same, but the true inverse of encode where that was clamped
};

static inline TensorScale tensor_scale(float amax, float tensor_max) {
    TensorScale t;
    const float encode = tensor_max / amax;
    t.encode = encode < FLOAT_MAX ? encode : FLOAT_MAX;
    t.decode = 1.0f / t.encode;
    t.dequant = amax / tensor_max;
    t.gemm = std::max(t.dequant, 1.0f / FLOAT_MAX);
    return t;
}

// In place of the magnitudes (bits) of `count` block amaxes: encode[i], what a value is multiplied (or, for
// AMAX_OVER_MAX, divided) with, and decode[i], the block's scale. count is a multiple of LANES.
template <ScaleRule RULE>
static void block_scales(const int32_t* amax_bits, int64_t count, const TensorScale& tensor, float element_max,
                         float* encode, float* decode) {
    const float folded = tensor.encode * (1.0f / element_max);
    for (int64_t i = 0; i < count; i += LANES) {
        vi bits;
        std::memcpy(&bits, amax_bits + i, sizeof bits);
        const vf amax = (vf)bits;
        vf scale, factor;
        if constexpr (RULE == TWO_LEVEL_TE || RULE == TWO_LEVEL_PAPER) {
            const vf wanted = RULE == TWO_LEVEL_TE ? amax * folded : (amax / element_max) * tensor.encode;
            scale = round_magnitude<E4M3>(min_value(wanted, splat(E4M3::MAX)));
            factor = min_value(1.0f / (scale * tensor.decode), splat(FLOAT_MAX));
        } else if constexpr (RULE == POWER_OF_TWO_UP) {
            const vf ratio = amax / element_max;
            // A scale of 2^-127 is a subnormal FP32: mantissa bit 22 alone.
            const vi rounded_up = ((vi)ratio + 0x007fffff) & EXPONENT;
            const vi tiny = (vi)ratio <= splat(0x00400000);
            scale = (vf)(tiny ? splat(0x00400000) : rounded_up);
            factor = 1.0f / scale;
        } else {
            // The floor keeps 0/0 away; a positive magnitude's bits order as the number does.
            scale = (vf)max_bits((vi)(amax / element_max), splat(1));
            factor = scale;
        }
        store(encode + i, factor);
        store(decode + i, scale);
    }
}

}  // namespace repro
