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

constexpr int PHILOX_BATCH = 16;  // counters a call, one a lane
constexpr int PHILOX_BYTES = 16;  // bytes a counter gives

// Writes the 16 * PHILOX_BATCH bytes of the counters first .. first + PHILOX_BATCH - 1.
static inline void philox_batch(uint64_t first, uint64_t seed, uint32_t* out) {
    for (uint64_t l = 0; l < PHILOX_BATCH; ++l) {  // one counter a lane: the compiler makes this one vector
        uint32_t c0 = (uint32_t)(first + l), c1 = (uint32_t)((first + l) >> 32), c2 = 0, c3 = 0;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; ++round) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
            const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        out[4 * l] = c0;
        out[4 * l + 1] = c1;
        out[4 * l + 2] = c2;
        out[4 * l + 3] = c3;
    }
}

// Writes the bytes of the elements index .. index + count - 1 to out.
static inline void random_bytes(uint64_t index, int64_t count, uint64_t seed, uint8_t* out) {
    uint32_t block[4 * PHILOX_BATCH];
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
