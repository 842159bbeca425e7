// Basis and SiLU of the inputs of a first layer, and the gradient of the inputs.

#pragma once

#include "gaussians.h"
#include "input_layer.h"
#include "pairs.h"
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

// Returns where the scores of a row lie side by side: in place, or in the buffer.
inline const float* scores_of(const InputCall& call, const Scores& some, int64_t b, float* buffer) {
    const InputLayer& a = call.a;
    const float* row = a.scores + b * a.features;
    const int64_t* features = a.layout + 1 + some.first;
    if (some.adjacent) {
        const float* ahead = row + std::min(SCORE_ROWS_AHEAD, a.rows - 1 - b) * a.features + features[0];
        for (int64_t i = 0; i < some.count; i += LANES) __builtin_prefetch(ahead + i);
        return row + features[0];
    }
    for (int64_t i = 0; i < some.count; ++i) buffer[i] = row[features[i]];
    return buffer;
}

// The basis of some inputs, a vector for each center, and their SiLU.
template <int FIXED>
inline void terms_of(const Grid& grid, Float x, Float* terms) {
    gaussians<FIXED>(grid, x, terms);
    terms[centers_of<FIXED>(grid.num_centers)] = x * sigmoid(x);
}

constexpr int MAX_TERMS = MAX_CENTERS + 1;

// The terms of some scores of a row: those of all scores for a center, center by center, and last their SiLU.
template <int FIXED>
void fill_scores(const InputCall& call, const Scores& some, int64_t b, float* to) {
    const Grid grid = grid_of(call.a);
    float buffer[SCORES_AT_A_TIME];
    const float* x = scores_of(call, some, b, buffer);
    for (int64_t i = 0; i < some.count; i += LANES) {
        const int64_t count = some.count - i;
        Float terms[MAX_TERMS];
        terms_of<FIXED>(grid, load_some(x + i, count), terms);
        for (int64_t t = 0; t <= centers_of<FIXED>(grid.num_centers); ++t) {
            store_some(to + t * some.count + i, terms[t], count);
        }
    }
}

// The same in bfloat16, with a zero after the last one where they are odd.
template <int FIXED>
void fill_score_halves(const InputCall& call, const Scores& some, int64_t b, float* words) {
    const Grid grid = grid_of(call.a);
    uint16_t* to = reinterpret_cast<uint16_t*>(words);
    float buffer[SCORES_AT_A_TIME];
    const float* x = scores_of(call, some, b, buffer);
    for (int64_t i = 0; i < some.count; i += LANES) {
        const int64_t count = some.count - i;
        Float terms[MAX_TERMS];
        terms_of<FIXED>(grid, load_some(x + i, count), terms);
        for (int64_t t = 0; t <= centers_of<FIXED>(grid.num_centers); ++t) {
            store_halves(to + t * some.count + i, terms[t], count);
        }
    }
    to[some.count * call.terms] = 0;
}

// Those of two rows in bfloat16, a word for each pair of the same term.
template <int FIXED>
void fill_score_pairs(const InputCall& call, const Scores& some, int64_t b, int64_t next, float* to) {
    const Grid grid = grid_of(call.a);
    float buffer[SCORES_AT_A_TIME], next_buffer[SCORES_AT_A_TIME];
    const float* x = scores_of(call, some, b, buffer);
    const float* next_x = scores_of(call, some, next, next_buffer);
    for (int64_t i = 0; i < some.count; i += LANES) {
        const int64_t count = some.count - i;
        Float terms[MAX_TERMS], next_terms[MAX_TERMS];
        terms_of<FIXED>(grid, load_some(x + i, count), terms);
        terms_of<FIXED>(grid, load_some(next_x + i, count), next_terms);
        for (int64_t t = 0; t <= centers_of<FIXED>(grid.num_centers); ++t) {
            store_some(to + t * some.count + i, pair_of(terms[t], next_terms[t]), count);
        }
    }
}

}  // namespace
