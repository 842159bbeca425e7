// Basis and SiLU of the inputs of a first layer, and the gradient of the inputs.

#pragma once

#include "gaussians.h"
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

// What a column's value is as an input: its score, or its embedding.
inline const float* inputs_of(const InputLayer& a, const InputColumn& column, int64_t value) {
    return (column.place < 0 ? a.byte_scores : a.embeddings[column.place]) + value * column.width;
}

// Rows whose scores are fetched while others are computed: of many columns they are far apart.
constexpr int64_t SCORE_ROWS_AHEAD = 4;

// Scores of a row that are no bytes.
inline void copy_scores(const InputCall& call, const Scores& some, int64_t b, float* to) {
    const float* row = call.a.scores + b * call.a.features;
    const int64_t* features = call.a.layout + 1 + some.first;
    for (int64_t i = 0; i < some.count; ++i) to[i] = row[features[i]];
}

// Their basis, center by center, and then their SiLU: a vector holds neighbouring scores, whose functions of one center
// lie side by side.
template <int FIXED>
inline void fill_scores(const InputCall& call, const Scores& some, int64_t b, float* to) {
    const InputLayer& a = call.a;
    const int64_t G = centers_of<FIXED>(a.num_centers);
    const Grid grid = grid_of(a);
    float* silu = to + G * some.count;
    const float* x = silu;
    int64_t ahead = 0;
    if (some.adjacent) {
        x = a.scores + b * a.features + a.layout[1 + some.first];
        ahead = std::min(SCORE_ROWS_AHEAD, a.rows - 1 - b) * a.features;
    } else {
        copy_scores(call, some, b, silu);
    }
    for (int64_t i = 0; i < some.count; i += LANES) {
        const int64_t count = some.count - i;
        __builtin_prefetch(x + ahead + i);
        const Float value = load_some(x + i, count);
        Float basis[FIXED == ANY ? MAX_CENTERS : 8];
        gaussians<FIXED>(grid, value, basis);
        for (int64_t g = 0; g < G; ++g) store_some(to + g * some.count + i, basis[g], count);
        store_some(silu + i, value * sigmoid(value), count);
    }
}

}  // namespace
