// Basis and SiLU of the inputs of a first layer, and the gradient of the inputs.

#pragma once

#include "input_layer.h"
#include "vectors.h"

namespace {

using namespace dkan;

// The basis of `width` inputs, then their SiLU, in whose place the inputs may stand.
inline void fill_bases(const InputLayer& a, const float* x, int64_t width, float* to) {
    const int64_t G = a.num_centers, count = width * G;
    for (int64_t i = 0; i < width; ++i) {
        for (int64_t g = 0; g < G; ++g) to[i * G + g] = (x[i] - a.centers[g]) * a.inverse_width;
    }
    for (int64_t j = 0; j < count; j += LANES) {
        const Float offset = load_some(to + j, count - j);
        store_some(to + j, exp(-(offset * offset)), count - j);
    }
    for (int64_t i = 0; i < width; i += LANES) {
        const Float value = load_some(x + i, width - i);
        store_some(to + count + i, value * sigmoid(value), width - i);
    }
}

// Adds the gradient of inputs, given that of their basis and SiLU.
inline void add_x_gradient(
    const InputLayer& a, const float* x, int64_t width, const float* bases, const float* grad_bases, float* to) {
    const int64_t G = a.num_centers;
    for (int64_t i = 0; i < width; ++i) {
        float slope = 0;
        for (int64_t g = 0; g < G; ++g) {
            slope += grad_bases[i * G + g] * bases[i * G + g] * ((x[i] - a.centers[g]) * a.inverse_width);
        }
        to[i] += slope * (-2 * a.inverse_width);
    }
    for (int64_t i = 0; i < width; i += LANES) {
        const Float value = load_some(x + i, width - i), gate = sigmoid(value);
        const Float grad = load_some(grad_bases + width * G + i, width - i) * gate * (1.0f + value * (1.0f - gate));
        store_some(to + i, load_some(to + i, width - i) + grad, width - i);
    }
}

// Outputs of a panel, of which the last one may have fewer.
inline int64_t columns_of(const InputCall& call, int64_t panel) {
    const int64_t left = call.a.outputs - panel * PANEL;
    return left < PANEL ? left : PANEL;
}

// What a column's value is as an input: its score, or its embedding.
inline const float* inputs_of(const InputLayer& a, const InputColumn& column, int64_t value) {
    return (column.embedding < 0 ? a.byte_scores : a.embeddings[column.embedding]) + value * column.width;
}

}  // namespace
