// Steps on one panel: a few rows x some columns of the tensor, as FP32 in a buffer that stays in the L1/L2 cache.
//
// A panel is [rows][width], padded with zeros to whole tiles, and holds whole Hadamard groups. Tiles are (1, w),
// (h, 1) or (h, w) in the tensor's own layout: blocks down the rows need no transposed copy, since a vector then
// simply holds blocks side by side.
#pragma once
#include <algorithm>
#include <type_traits>

#include "scaling.hpp"

namespace repro {

// The valid part of a panel; the rest is padding.
struct Extent {
    int64_t rows, columns;
};

// Where the rows of a panel lie: in its buffer, or in a tensor itself.
template <class Value>
struct Rows {
    Value* first;
    int64_t pitch;

    Value* operator[](int64_t r) const { return first + r * pitch; }
};

// Reads a panel's valid part and fills the padding with zeros.
template <class Storage>
static void read_panel(const Storage* x, int64_t row_stride, const Extent& valid, float* panel, int64_t panel_rows,
                       int64_t width) {
    const int64_t columns = valid.columns;
    for (int64_t r = 0; r < valid.rows; ++r) {
        const Storage* from = x + r * row_stride;
        float* to = panel + r * width;
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) store(to + c, load(from + c));
        if (c < columns) {
            Storage tail[LANES] = {};
            std::memcpy(tail, from + c, (size_t)(columns - c) * sizeof(Storage));
            store(to + c, load(tail));
            c += LANES;
        }
        for (; c < width; c += LANES) store(to + c, vf{});
    }
    std::fill(panel + valid.rows * width, panel + panel_rows * width, 0.0f);
}

// Largest magnitude of `count` values as bits; `so_far` continues an earlier one.
template <class Storage>
static vi magnitude_max(const Storage* values, int64_t count, vi so_far) {
    vi a = so_far, b{}, c{}, d{};
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        a = max_bits(a, (vi)load(values + i) & MAGNITUDE);
        b = max_bits(b, (vi)load(values + i + LANES) & MAGNITUDE);
        c = max_bits(c, (vi)load(values + i + 2 * LANES) & MAGNITUDE);
        d = max_bits(d, (vi)load(values + i + 3 * LANES) & MAGNITUDE);
    }
    for (; i + LANES <= count; i += LANES) a = max_bits(a, (vi)load(values + i) & MAGNITUDE);
    if (i < count) {
        Storage tail[LANES] = {};
        std::memcpy(tail, values + i, (size_t)(count - i) * sizeof(Storage));
        a = max_bits(a, (vi)load(tail) & MAGNITUDE);
    }
    return max_bits(max_bits(a, b), max_bits(c, d));
}

// Calls body(n) with the number of vectors in a block's row, as a compile-time constant where it is a usual one, so
// that the loop over them unrolls: std::integral_constant or int64_t.
template <class Body>
static inline void with_block_vectors(int64_t tile_columns, const Body& body) {
    const int64_t vectors = tile_columns / LANES;
    switch (vectors) {
        case 1: return body(std::integral_constant<int64_t, 1>());
        case 2: return body(std::integral_constant<int64_t, 2>());
        case 4: return body(std::integral_constant<int64_t, 4>());
        case 8: return body(std::integral_constant<int64_t, 8>());
        default: return body(vectors);
    }
}

// Block amaxes (as bits) of tiles tile_rows x tile_columns, stored [rows / tile_rows][width / tile_columns], and the
// panel's own, which is returned.
static int32_t block_amaxes(Rows<const float> panel, int64_t rows, int64_t width, int64_t tile_rows,
                            int64_t tile_columns, int32_t* amaxes) {
    vi all{};
    if (tile_columns == 1) {
        for (int64_t top = 0; top < rows; top += tile_rows, amaxes += width)
            for (int64_t c = 0; c < width; c += LANES) {
                vi best{};
                for (int64_t r = top; r < top + tile_rows; ++r)
                    best = max_bits(best, (vi)load(panel[r] + c) & MAGNITUDE);
                std::memcpy(amaxes + c, &best, sizeof best);
                all = max_bits(all, best);
            }
    } else {
        with_block_vectors(tile_columns, [&](auto vectors) {
            for (int64_t top = 0; top < rows; top += tile_rows)
                for (int64_t c = 0; c < width; c += vectors * LANES) {
                    vi best{};
                    for (int64_t r = top; r < top + tile_rows; ++r)
                        for (int64_t j = 0; j < vectors; ++j)
                            best = max_bits(best, (vi)load(panel[r] + c + j * LANES) & MAGNITUDE);
                    *amaxes++ = reduce_max(best);
                    all = max_bits(all, best);
                }
        });
    }
    return reduce_max(all);
}

// Code value x block scale of one vector.
template <class Element, bool STOCHASTIC, bool DIVIDES>
static inline vf quantise(vf x, vf encode, vf decode, const uint8_t* random) {
    const vf y = DIVIDES ? x / encode : x * encode;
    const vf magnitude = (vf)min_bits((vi)y & MAGNITUDE, (vi)splat(Element::MAX));
    vf rounded;
    if constexpr (STOCHASTIC) {
        vb bytes;
        std::memcpy(&bytes, random, sizeof bytes);
        rounded = round_magnitude<Element>(magnitude, __builtin_convertvector(__builtin_convertvector(bytes, vh), vi));
    } else {
        rounded = round_magnitude<Element>(magnitude);
    }
    return (vf)((vi)rounded | sign_of<Element>(y)) * decode;
}

// Code value x block scale of a panel, in place or from one place to another. encode and decode lie as block_amaxes
// wrote the blocks, the random bytes as [rows][width].
template <class Element, bool STOCHASTIC, bool DIVIDES>
static void quantise_panel(Rows<const float> from, Rows<float> to, int64_t rows, int64_t width, int64_t tile_rows,
                           int64_t tile_columns, const float* encode, const float* decode, const uint8_t* random) {
    const int64_t stride = width / tile_columns;
    const auto each_row = [&](const auto& row) {
        for (int64_t top = 0; top < rows; top += tile_rows, encode += stride, decode += stride)
            for (int64_t r = top; r < top + tile_rows; ++r) row(from[r], to[r], random + r * width);
    };
    const auto apply = quantise<Element, STOCHASTIC, DIVIDES>;
    if (tile_columns == 1)
        each_row([&](const float* in, float* out, const uint8_t* bytes) {
            for (int64_t c = 0; c < width; c += LANES)
                store(out + c, apply(load(in + c), load(encode + c), load(decode + c), bytes + c));
        });
    else
        with_block_vectors(tile_columns, [&](auto vectors) {
            each_row([&](const float* in, float* out, const uint8_t* bytes) {
                for (int64_t block = 0, c = 0; block < stride; ++block)
                    for (int64_t j = 0; j < vectors; ++j, c += LANES)
                        store(out + c, apply(load(in + c), splat(encode[block]), splat(decode[block]), bytes + c));
            });
        });
}

// Writes the valid part of the panel as stored: FP32, or BF16 where every value is exact in it.
template <class Storage>
static void write_panel(const float* panel, const Extent& valid, int64_t width, Storage* out, int64_t row_stride,
                        float dequant, bool rescales) {
    const int64_t columns = valid.columns;
    const bool rounds = rescales && sizeof(Storage) == 2;
    for (int64_t r = 0; r < valid.rows; ++r) {
        const float* from = panel + r * width;
        Storage* to = out + r * row_stride;
        for (int64_t c = 0; c < columns; c += LANES) {
            vf v = load(from + c);
            if (rescales) v = v * dequant;
            if (rounds) v = round_to_bf16(v);
            if (c + LANES <= columns) {
                store(to + c, v);
            } else {
                Storage tail[LANES];
                store(tail, v);
                std::memcpy(to + c, tail, (size_t)(columns - c) * sizeof(Storage));
            }
        }
    }
}

}  // namespace repro
