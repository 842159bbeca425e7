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

inline __m512i rounded_words(Float value) {
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)value));
}

// Words of which each has the number of `low` and that of `high`.
inline Float pair_of(Float low, Float high) {
    return (Float)_mm512_or_si512(rounded_words(low), _mm512_slli_epi32(rounded_words(high), 16));
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
inline void store_halves(uint16_t*, Float, int64_t) {}

#endif

// A number in bfloat16, rounded to the nearest, to an even one if two are as near; NaN stays NaN.
inline uint16_t half_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace
