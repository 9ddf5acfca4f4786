// SIMD vocabulary of the fused CPU quantiser: GCC/Clang vector extensions at the machine's natural width.
//
// Everything here is lane-wise and exact in the IEEE sense, so the width changes the speed and never a bit:
// a build for AVX-512, AVX2, SSE2 or NEON gives the same result. No intrinsics, hence one source for all.
// Integer minimum/maximum on the bits of non-negative floats orders them as floats do (and puts NaN above
// infinity), which keeps the amax exact, order-free and honest about NaN.
#pragma once
#include <cstdint>
#include <cstring>

namespace repro {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
typedef uint8_t vb __attribute__((vector_size(LANES)));

constexpr int32_t SIGN_BIT = INT32_MIN;
constexpr int32_t MAGNITUDE = 0x7fffffff;
constexpr int32_t EXPONENT = 0x7f800000;
constexpr float FLOAT_MAX = 3.4028234663852886e38f;

static inline vf load(const float* p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
static inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

// BF16 is the upper half of an FP32, so reading is a shift.
static inline vf load(const uint16_t* p) {
    vh h;
    std::memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}
// Keeps the upper half: exact when the value is a BF16 number.
static inline void store(uint16_t* p, vf v) {
    const vh h = __builtin_convertvector((vu)v >> 16, vh);
    std::memcpy(p, &h, sizeof h);
}

static inline vf splat(float s) { return vf{} + s; }
static inline vi splat(int32_t s) { return vi{} + s; }
static inline vi min_bits(vi a, vi b) { return a < b ? a : b; }
static inline vi max_bits(vi a, vi b) { return a > b ? a : b; }
static inline vf min_value(vf a, vf b) { return a < b ? a : b; }

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define REPRO_HAS_SHUFFLEVECTOR
#endif
#endif

// Lanes i and i ^ STRIDE exchanged.
template <int STRIDE, class Vector>
static inline Vector exchange(Vector v) {
#ifdef REPRO_HAS_SHUFFLEVECTOR
#if defined(__AVX512F__)
    return __builtin_shufflevector(v, v, 0 ^ STRIDE, 1 ^ STRIDE, 2 ^ STRIDE, 3 ^ STRIDE, 4 ^ STRIDE, 5 ^ STRIDE,
                                   6 ^ STRIDE, 7 ^ STRIDE, 8 ^ STRIDE, 9 ^ STRIDE, 10 ^ STRIDE, 11 ^ STRIDE,
                                   12 ^ STRIDE, 13 ^ STRIDE, 14 ^ STRIDE, 15 ^ STRIDE);
#elif defined(__AVX2__)
    return __builtin_shufflevector(v, v, 0 ^ STRIDE, 1 ^ STRIDE, 2 ^ STRIDE, 3 ^ STRIDE, 4 ^ STRIDE, 5 ^ STRIDE,
                                   6 ^ STRIDE, 7 ^ STRIDE);
#else
    return __builtin_shufflevector(v, v, 0 ^ STRIDE, 1 ^ STRIDE, 2 ^ STRIDE, 3 ^ STRIDE);
#endif
#else
    Vector out;
    for (int i = 0; i < LANES; ++i) out[i] = v[i ^ STRIDE];
    return out;
#endif
}

// Largest lane; used on magnitudes as integers.
static inline int32_t reduce_max(vi v) {
    if constexpr (LANES > 8) v = max_bits(v, exchange<LANES / 2>(v));
    if constexpr (LANES > 4) v = max_bits(v, exchange<4>(v));
    v = max_bits(v, exchange<2>(v));
    v = max_bits(v, exchange<1>(v));
    return v[0];
}

// Round to the nearest BF16, ties to even; NaN stays NaN instead of carrying into the sign.
static inline vf round_to_bf16(vf v) {
    const vu bits = (vu)v;
    const vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const vi is_nan = ((vi)v & MAGNITUDE) > EXPONENT;
    return (vf)(is_nan ? splat(0x7fc00000) : (vi)rounded);
}

static inline float bits_to_float(int32_t bits) {
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}
static inline int32_t float_to_bits(float f) {
    int32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits;
}

}  // namespace repro
