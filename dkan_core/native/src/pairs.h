// Numbers in bfloat16, two in each word of a vector: one instruction adds the products of both pairs in float32. Without
// AVX-512 BF16 there are none, and products stay in float32, which is as fast there.

#pragma once

#include "vectors.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512BF16__)

constexpr bool HAS_PAIRS = true;

inline Float add_pairs(Float sums, Float left, Float right) {
    return (Float)_mm512_dpbf16_ps((__m512)sums, (__m512bh)left, (__m512bh)right);
}

// Exchanges the rows and columns of 16 vectors: of blocks of 1, 2, 4 and 8, each time the upper right and the lower left.
template <int SIZE>
inline void turn_blocks(Float* square) {
    Int upper, lower;  // lanes of both vectors, one after the other
    for (int lane = 0; lane < LANES; ++lane) {
        upper[lane] = lane & SIZE ? lane - SIZE + LANES : lane;
        lower[lane] = lane & SIZE ? lane + LANES : lane + SIZE;
    }
    for (int r = 0; r < LANES; ++r) {
        if (r & SIZE) continue;
        const __m512 above = (__m512)square[r], below = (__m512)square[r + SIZE];
        square[r] = (Float)_mm512_permutex2var_ps(above, (__m512i)upper, below);
        square[r + SIZE] = (Float)_mm512_permutex2var_ps(above, (__m512i)lower, below);
    }
}

inline void turn(Float* square) {
    turn_blocks<1>(square);
    turn_blocks<2>(square);
    turn_blocks<4>(square);
    turn_blocks<8>(square);
}

inline __m512i rounded_words(Float value) {
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)value));
}

// Words of which each has the number of `low` and that of `high`.
inline Float pair_of(Float low, Float high) {
    return (Float)_mm512_or_si512(rounded_words(low), _mm512_slli_epi32(rounded_words(high), 16));
}

// What a number in bfloat16 makes of each.
inline Float rounded(Float value) { return (Float)_mm512_slli_epi32(rounded_words(value), 16); }

// Puts pairs of adjacent numbers of each row, as many rows as a vector has, side by side with those of the other rows. Of
// the numbers what rounding leaves remains.
inline void turn_pairs(float* rows, int64_t words, float* to, int64_t to_step) {
    for (int64_t k = 0; k < words; k += LANES, rows += 2 * LANES, to += LANES * to_step) {
        Float square[LANES];
        for (int64_t r = 0; r < LANES; ++r) {
            float* from = rows + r * 2 * words;
            const Float low = load(from), high = load(from + LANES);
            square[r] = (Float)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
            store(from, low - rounded(low));
            store(from + LANES, high - rounded(high));
        }
        turn(square);
        for (int64_t r = 0; r < LANES; ++r) store(to + r * to_step, square[r]);
    }
}

// Rounds `count` numbers at most.
inline void store_halves(uint16_t* to, Float value, int64_t count) {
    const __m256bh halves = _mm512_cvtneps_pbh((__m512)value);
    memcpy(to, &halves, 2 * (count < LANES ? count : LANES));
}

#else

constexpr bool HAS_PAIRS = false;

inline Float add_pairs(Float sums, Float, Float) { return sums; }
inline Float pair_of(Float low, Float) { return low; }
inline Float rounded(Float value) { return value; }
inline void turn_pairs(float*, int64_t, float*, int64_t) {}
inline void store_halves(uint16_t*, Float, int64_t) {}

#endif

// A number in bfloat16, rounded to the nearest, to an even one if two are as near; NaN stays NaN.
inline uint16_t half_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float float_of(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

}  // namespace
