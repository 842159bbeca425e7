// Vectors of the length that the compiler's target has, by the vector extensions of GCC and Clang: no intrinsics, so
// that the same source serves AVX-512, AVX2, ARM's NEON and whatever has none.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define DKAN_LANES 16
#elif defined(__AVX__)
#define DKAN_LANES 8
#else
#define DKAN_LANES 4
#endif

// All is internal to one variant: a linker must not take one variant's copy of a function for another's.
namespace {

constexpr int64_t LANES = DKAN_LANES;
typedef float Float __attribute__((vector_size(4 * DKAN_LANES)));
typedef int32_t Int __attribute__((vector_size(4 * DKAN_LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * DKAN_LANES)));

inline Float load(const float* from) {
    Float value;
    memcpy(&value, from, sizeof value);
    return value;
}

inline Int load(const int32_t* from) {
    Int value;
    memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float* to, Float value) { memcpy(to, &value, sizeof value); }

// Loads and stores of the last inputs of a row, which may be fewer than a vector. A whole one is a single instruction;
// a copy whose length the compiler does not know is a call.
inline Float load_some(const float* from, int64_t count) {
    if (count >= LANES) return load(from);
    Float value = {};
    memcpy(&value, from, 4 * count);
    return value;
}

inline Int load_some(const int32_t* from, int64_t count) {
    if (count >= LANES) return load(from);
    Int value = {};
    memcpy(&value, from, 4 * count);
    return value;
}

inline void store_some(float* to, Float value, int64_t count) {
    if (count >= LANES) return store(to, value);
    memcpy(to, &value, 4 * count);
}

// Few numbers: a compiler may copy them by a string instruction, which takes long to begin.
inline void copy_some(const float* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += LANES) store_some(to + i, load_some(from + i, count - i), count - i);
}

inline Float splat(float value) { return value - Float{}; }

// Half of the lanes are added to the other half until one is left.
inline float sum(Float value) {
    typedef float Four __attribute__((vector_size(16)));
    Four parts[LANES / 4];
    memcpy(parts, &value, sizeof value);
    for (int64_t half = LANES / 8; half > 0; half /= 2) {
        for (int64_t part = 0; part < half; ++part) parts[part] += parts[part + half];
    }
    return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

inline Bits bits_of(Float value) {
    Bits bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline Float float_of(Bits bits) {
    Float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// e^x for x from -87.3 to 88, within 2 units in the last place: 2^n by the bits of the exponent, times e^r for
// |r| <= ln(2) / 2 by the polynomial of the Cephes library. NaN stays NaN.
inline Float exp_in_range(Float x) {
    // Adding it rounds to a whole number, which then stands in the low bits.
    const Float rounder = splat(12582912.0f);
    const Float shifted = x * 1.44269504f + rounder;
    const Float n = shifted - rounder;
    const Float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    return p * float_of((bits_of(shifted) << 23) + 0x3f800000u);
}

// The same for all x up to 88: 0 below -87.3, where float32 has no normal numbers left.
inline Float exp(Float x) {
    const Float lowest = splat(-87.33f);
    const Float result = exp_in_range(x < lowest ? lowest : x);
    return x < lowest ? Float{} : result;
}

// 1 / (1 + e^-x).
inline Float sigmoid(Float x) {
    const Float highest = splat(88.0f);
    const Float negated = -x;
    return 1.0f / (1.0f + exp(negated > highest ? highest : negated));
}

}  // namespace
