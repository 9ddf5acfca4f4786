// Random bytes of stochastic rounding: Philox4x32-10 (Salmon et al., SC'11), the same bytes as
// repro.numerics.random_bits.
//
// Element i of the tensor (row-major index in its own [M, N] shape) owns byte i % 16 of the 128-bit block whose
// counter is i / 16: word (i % 16) / 4, little-endian byte i % 4 within it. The key is the 64-bit seed (low word
// first). A byte therefore depends on seed and index alone, not on threads, tiles or the order of the work.
#pragma once
#include <algorithm>

#include "vectors.hpp"

namespace repro {

constexpr int PHILOX_BATCH = 16;  // counters a call
constexpr int PHILOX_BYTES = 16;  // bytes a counter gives

typedef uint64_t vq __attribute__((vector_size(LANES * 4)));

// Writes the 16 * PHILOX_BATCH bytes of the counters first .. first + PHILOX_BATCH - 1. Each 32-bit word of the state
// has a 64-bit lane to itself, so that one multiplication gives both halves of a product; the upper halves of c1 and
// c3 (and through them of c0 and c2) hold left-overs, which LOW takes away before they could count.
static inline void philox_batch(uint64_t first, uint64_t seed, uint64_t* out) {
    constexpr int WIDTH = LANES / 2, PARTS = PHILOX_BATCH / WIDTH;
    constexpr uint64_t LOW = 0xffffffffu;
    vq c0[PARTS], c1[PARTS], c2[PARTS] = {}, c3[PARTS] = {};
    vq lane;
    for (int l = 0; l < WIDTH; ++l) lane[l] = (uint64_t)l;
    for (int part = 0; part < PARTS; ++part) {
        c0[part] = lane + (first + (uint64_t)(part * WIDTH));
        c1[part] = c0[part] >> 32;
    }
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        for (int part = 0; part < PARTS; ++part) {
            const vq p0 = (c0[part] & LOW) * (uint64_t)0xD2511F53u;
            const vq p1 = (c2[part] & LOW) * (uint64_t)0xCD9E8D57u;
            c0[part] = (p1 >> 32) ^ c1[part] ^ (uint64_t)k0;
            c2[part] = (p0 >> 32) ^ c3[part] ^ (uint64_t)k1;
            c1[part] = p1;
            c3[part] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    uint64_t low[PHILOX_BATCH], high[PHILOX_BATCH];
    for (int part = 0; part < PARTS; ++part) {
        const vq words01 = (c0[part] & LOW) | (c1[part] << 32), words23 = (c2[part] & LOW) | (c3[part] << 32);
        std::memcpy(low + part * WIDTH, &words01, sizeof words01);
        std::memcpy(high + part * WIDTH, &words23, sizeof words23);
    }
    for (int l = 0; l < PHILOX_BATCH; ++l) {
        out[2 * l] = low[l];
        out[2 * l + 1] = high[l];
    }
}

// Writes the bytes of the elements index .. index + count - 1 to out.
static inline void random_bytes(uint64_t index, int64_t count, uint64_t seed, uint8_t* out) {
    uint64_t block[2 * PHILOX_BATCH];
    uint64_t counter = index / PHILOX_BYTES;
    int64_t skip = (int64_t)(index % PHILOX_BYTES);
    while (count > 0) {
        philox_batch(counter, seed, block);
        const int64_t take = std::min<int64_t>(count, PHILOX_BATCH * PHILOX_BYTES - skip);
        std::memcpy(out, (const uint8_t*)block + skip, (size_t)take);
        out += take;
        count -= take;
        skip = 0;
        counter += PHILOX_BATCH;
    }
}

}  // namespace repro
