// Randomised Hadamard transform of a panel (arXiv 2509.25149, section 4.2): x -> (x * signs) H / sqrt(size).
//
// The order of the FP32 operations is part of the definition (repro/numerics/hadamard.py), because a sum that is
// not exact in FP32 may round to another BF16 number when added in another order:
//   1. multiply by signs[i] * 2^-ceil(log2(size) / 2), exact for BF16 values;
//   2. butterflies (a, b) -> (a + b, a - b) with the stride 1, then 2, 4, .. size/2;
//   3. where log2(size) is odd, multiply by fl32(sqrt(2));
//   4. round to BF16, nearest, ties to even.
#pragma once
#include "vectors.hpp"

namespace repro {

constexpr float SQRT_TWO = 1.41421356237309504880f;
constexpr int MAX_HADAMARD = 128;

constexpr bool has_odd_log2(int size) { return size == 2 || size == 8 || size == 32 || size == 128; }

// One butterfly stage inside a vector: lane i gets v[i] + v[i ^ S], or v[i ^ S] - v[i] when bit S of i is set.
template <int STRIDE>
static inline vf stage_in_vector(vf v) {
    vi flip;
    for (int i = 0; i < LANES; ++i) flip[i] = (i & STRIDE) ? SIGN_BIT : 0;
    return exchange<STRIDE>(v) + (vf)((vi)v ^ flip);
}

// Stages first, 2 * first, .. count / 2 between whole vectors.
template <int COUNT>
static inline void stages_between_vectors(vf* v) {
    for (int stride = 1; stride < COUNT; stride *= 2)
        for (int i = 0; i < COUNT; ++i)
            if (!(i & stride)) {
                const vf a = v[i], b = v[i + stride];
                v[i] = a + b;
                v[i + stride] = a - b;
            }
}

template <int SIZE>
static inline vf finish(vf v) {
    if (has_odd_log2(SIZE)) v = v * SQRT_TWO;
    return round_to_bf16(v);
}

// Groups of SIZE neighbours along the columns of a flat run of `count` values (a multiple of SIZE and LANES).
template <int SIZE>
static void transform_columns(float* values, int64_t count, const float* factors) {
    constexpr int VECTORS = SIZE > LANES ? SIZE / LANES : 1;
    vf factor[VECTORS];
    for (int j = 0; j < VECTORS; ++j)
        for (int i = 0; i < LANES; ++i) factor[j][i] = factors[(j * LANES + i) % SIZE];
    for (int64_t at = 0; at < count; at += VECTORS * LANES) {
        vf v[VECTORS];
        for (int j = 0; j < VECTORS; ++j) {
            v[j] = load(values + at + j * LANES) * factor[j];
            if constexpr (SIZE > 1 && LANES > 1) v[j] = stage_in_vector<1>(v[j]);
            if constexpr (SIZE > 2 && LANES > 2) v[j] = stage_in_vector<2>(v[j]);
            if constexpr (SIZE > 4 && LANES > 4) v[j] = stage_in_vector<4>(v[j]);
            if constexpr (SIZE > 8 && LANES > 8) v[j] = stage_in_vector<8>(v[j]);
        }
        stages_between_vectors<VECTORS>(v);
        for (int j = 0; j < VECTORS; ++j) store(values + at + j * LANES, finish<SIZE>(v[j]));
    }
}

// Groups of SIZE rows of a panel [rows][width]; sizes above 16 in two sweeps so that the first 4 stages stay in
// registers: 16 neighbouring rows, then rows 16 apart.
template <int SIZE>
static void transform_rows(float* panel, int64_t rows, int64_t width, const float* factors) {
    constexpr int NEAR = SIZE > 16 ? 16 : SIZE;
    constexpr int FAR = SIZE / NEAR;
    for (int64_t group = 0; group < rows; group += SIZE)
        for (int64_t c = 0; c < width; c += LANES) {
            float* base = panel + group * width + c;
            for (int part = 0; part < FAR; ++part) {
                vf v[NEAR];
                for (int i = 0; i < NEAR; ++i)
                    v[i] = load(base + (part * NEAR + i) * width) * factors[part * NEAR + i];
                stages_between_vectors<NEAR>(v);
                for (int i = 0; i < NEAR; ++i)
                    store(base + (part * NEAR + i) * width, FAR == 1 ? finish<SIZE>(v[i]) : v[i]);
            }
            if constexpr (FAR > 1)
                for (int i = 0; i < NEAR; ++i) {
                    vf v[FAR];
                    for (int part = 0; part < FAR; ++part) v[part] = load(base + (part * NEAR + i) * width);
                    stages_between_vectors<FAR>(v);
                    for (int part = 0; part < FAR; ++part)
                        store(base + (part * NEAR + i) * width, finish<SIZE>(v[part]));
                }
        }
}

// signs[i] * 2^-ceil(log2(size) / 2); signs == nullptr means all +1.
static inline void hadamard_factors(int size, const float* signs, float* factors) {
    int log2_size = 0;
    while ((1 << log2_size) < size) ++log2_size;
    const float shrink = 1.0f / (float)(1 << ((log2_size + 1) / 2));
    for (int i = 0; i < size; ++i) factors[i] = (signs ? signs[i] : 1.0f) * shrink;
}

// Transforms a panel [rows][width] in place along its rows' (along = 0) or columns' (along = 1) dimension.
static void transform_panel(float* panel, int64_t rows, int64_t width, int size, int along, const float* factors) {
#define REPRO_HADAMARD_CASE(S)                                                   \
    case S:                                                                      \
        if (along == 1)                                                          \
            transform_columns<S>(panel, rows * width, factors);                  \
        else                                                                     \
            transform_rows<S>(panel, rows, width, factors);                      \
        break;
    switch (size) {
        REPRO_HADAMARD_CASE(2)
        REPRO_HADAMARD_CASE(4)
        REPRO_HADAMARD_CASE(8)
        REPRO_HADAMARD_CASE(16)
        REPRO_HADAMARD_CASE(32)
        REPRO_HADAMARD_CASE(64)
        REPRO_HADAMARD_CASE(128)
    }
#undef REPRO_HADAMARD_CASE
}

}  // namespace repro
