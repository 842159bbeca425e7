// A row of a hidden layer on its way through dropout and LayerNorm, and back. A `Row` has `x`, what dropout leaves;
// `normed`, that without weight and bias; `factor` of dropout; `deviation`, 1 / standard deviation; and on its way back
// the gradients `grad_normed` and, through the SiLU, `grad_base`.

#pragma once

#include "arguments.h"
#include "vectors.h"

namespace {

using namespace dkan;

// The hash of dropout.py.
constexpr uint32_t FIRST_FACTOR = 0x7FEB352D, SECOND_FACTOR = 0x846CA68B, SHIFT = 15;
inline Float kept_factors(const Hidden& a, int64_t network, int64_t row, int64_t i) {
    const int32_t* unit_keys = a.unit_keys + network * a.inputs + i;
    Bits bits;
    const Int keys = load_some(unit_keys, a.inputs - i) ^ a.row_keys[row];
    memcpy(&bits, &keys, sizeof bits);
    bits *= FIRST_FACTOR;
    bits ^= bits >> SHIFT;
    bits *= SECOND_FACTOR;
    Int hashed;
    memcpy(&hashed, &bits, sizeof hashed);
    return hashed >= a.threshold ? splat(a.kept_factor) : Float{};
}

// Reads a row, drops and normalizes; the padding of `normed` is 0.
template <typename Row>
inline void begin_row(const Hidden& a, int64_t network, int64_t b, Row& row) {
    const int64_t I = a.inputs, P = padded(I);
    const float* x = a.x + network * a.network_stride + b * a.row_stride;
    Float total = {};
    for (int64_t i = 0; i < P; i += LANES) {
        Float value = i < I ? load_some(x + i, I - i) : Float{};
        if (a.row_keys) {
            const Float factor = i < I ? kept_factors(a, network, b, i) : Float{};
            value *= factor;
            store(row.factor + i, factor);
        }
        store(row.x + i, value);
        total += value;
    }
    const float mean = sum(total) / I;
    Float squares = {};
    for (int64_t i = 0; i < I; i += LANES) {
        const Float centered = load(row.x + i) - mean;
        store(row.normed + i, centered);
        if (i + LANES <= I) squares += centered * centered;
    }
    float variance = sum(squares);
    for (int64_t i = I / LANES * LANES; i < I; ++i) variance += row.normed[i] * row.normed[i];
    for (int64_t i = I; i < P; ++i) row.normed[i] = 0;
    row.deviation = 1 / __builtin_sqrtf(variance / I + a.epsilon);
    for (int64_t i = 0; i < P; i += LANES) store(row.normed + i, load(row.normed + i) * row.deviation);
}

// Puts the gradient of a row's inputs, given the sums over its inputs of `grad_normed` and of that times `normed`.
template <typename Row>
inline void finish_row(const Hidden& a, int64_t network, int64_t b, Float total, Float projection, const Row& row) {
    const int64_t I = a.inputs;
    const float mean = sum(total) / I, share = sum(projection) / I;
    float* grad_x = a.grad_x + network * a.network_stride + b * a.row_stride;
    for (int64_t i = 0; i < I; i += LANES) {
        const Float through_norm = load(row.grad_normed + i) - mean - load(row.normed + i) * share;
        Float grad = through_norm * row.deviation + load(row.grad_base + i);
        if (a.row_keys) grad *= load(row.factor + i);
        store_some(grad_x + i, grad, I - i);
    }
}

}  // namespace
