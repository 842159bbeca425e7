// The scores of a first layer that are no bytes: row by row through the basis and a product, some of them at a time.

#pragma once

#include "gaussians.h"
#include "input_bases.h"
#include "pairs.h"
#include "products.h"

namespace {

using namespace dkan;

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

inline void put(float* to, Float values, int64_t count) { store_some(to, values, count); }
inline void put(uint16_t* to, Float values, int64_t count) { store_halves(to, values, count); }

// The terms of some scores of a row: those of all scores for a center, center by center, and last their SiLU. In
// bfloat16, a zero follows, with which the last one shares its word where they are odd.
template <int FIXED, typename Number>
void fill_scores(const InputCall& call, const Scores& some, int64_t b, float* words) {
    const Grid grid = grid_of(call.a);
    Number* to = reinterpret_cast<Number*>(words);
    float buffer[SCORES_AT_A_TIME];
    const float* x = scores_of(call, some, b, buffer);
    for (int64_t i = 0; i < some.count; i += LANES) {
        const int64_t count = some.count - i;
        Float terms[MAX_TERMS];
        terms_of<FIXED>(grid, load_some(x + i, count), terms);
        for (int64_t t = 0; t <= centers_of<FIXED>(grid.num_centers); ++t) {
            put(to + t * some.count + i, terms[t], count);
        }
    }
    if constexpr (sizeof(Number) == 2) to[some.count * call.terms] = 0;
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

// Whether products of scores are those of numbers in bfloat16.
bool takes_pairs(const InputCall& call) { return HAS_PAIRS && call.a.bf16; }

float* score_weights_of(const InputCall& call, const Scores& some, int64_t panel) {
    return call.score_weights + (panel * call.scores + some.first) * call.terms * PANEL;
}

// Puts a weight in the place of its term and output: in bfloat16, two terms share a word.
void put_weight(bool pairs, float weight, int64_t term, int64_t j, float* to) {
    if (!pairs) {
        to[term * PANEL + j] = weight;
    } else {
        reinterpret_cast<uint16_t*>(to)[(term / 2 * PANEL + j) * 2 + term % 2] = half_of(weight);
    }
}

// The weights of the scores in the order of their terms, with outputs as columns.
void score_weights(const InputCall& call, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, columns = columns_of(call, panel);
    const bool pairs = takes_pairs(call);
    for (int64_t next = 0; next < call.scores; next += SCORES_AT_A_TIME) {
        const Scores some = scores_from(call, next);
        const int64_t terms = some.count * call.terms;
        float* to = score_weights_of(call, some, panel);
        if (columns < PANEL) memset(to, 0, terms * PANEL * 4);
        // A last term that is alone in its word.
        for (int64_t j = 0; pairs && terms % 2 && j < columns; ++j) put_weight(pairs, 0, terms, j, to);
        for (int64_t i = 0; i < some.count; ++i) {
            for (int64_t j = 0; j < columns; ++j) {
                const int64_t place = (panel * PANEL + j) * a.inputs + some.first + i;
                for (int64_t g = 0; g < G; ++g) put_weight(pairs, a.spline[place * G + g], g * some.count + i, j, to);
                put_weight(pairs, a.base[place], G * some.count + i, j, to);
            }
        }
    }
}

// Adds some scores of some rows to a panel of the sums of these.
void add_scores(const InputCall& call, const Scores& some, int64_t panel, const Rows& rows, float* bases, float* sums) {
    const bool even = is_even(grid_of(call.a)), pairs = takes_pairs(call);
    const auto numbers = even ? fill_scores<EVEN_GRID, float> : fill_scores<ANY, float>;
    const auto halves = even ? fill_scores<EVEN_GRID, uint16_t> : fill_scores<ANY, uint16_t>;
    const int64_t terms = some.count * call.terms, words = pairs ? (terms + 1) / 2 : terms;
    for (int64_t r = 0; r < rows.count; ++r) (pairs ? halves : numbers)(call, some, rows.first + r, bases + r * words);
    const auto product = pairs ? add_product<PAIRS> : add_product<NUMBERS>;
    const float* weights = score_weights_of(call, some, panel);
    product(bases, words, 1, weights, PANEL, rows.count, words, columns_of(call, panel), sums, PANEL);
}

// Adds to the gradient of a panel's weights of some scores what has been summed up for it.
void add_score_sums(const InputCall& call, const Scores& some, int64_t panel, const float* from) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, columns = columns_of(call, panel);
    for (int64_t j = 0; j < columns; ++j, from += padded_terms(some.count, call.terms)) {
        const int64_t place = (panel * PANEL + j) * a.inputs + some.first;
        for (int64_t i = 0; i < some.count; ++i) {
            for (int64_t g = 0; g < G; ++g) a.grad_spline[(place + i) * G + g] += from[g * some.count + i];
            a.grad_base[place + i] += from[G * some.count + i];
        }
    }
}

// Of rows of a chunk the terms of some scores, and the gradient in panels.
void score_bases(const InputCall& call, const Scores& some, const Rows& chunk, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t terms = some.count * call.terms;
    const auto fill = is_even(grid_of(a)) ? fill_scores<EVEN_GRID, float> : fill_scores<ANY, float>;
    for (int64_t b = start; b < stop; ++b) {
        const int64_t row = b - chunk.first;
        fill(call, some, b, call.score_bases + row * terms);
        for (int64_t panel = 0; panel < call.panels; ++panel) {
            float* to = call.gradients + (panel * chunk.count + row) * PANEL;
            memcpy(to, a.grad_out + b * a.outputs + panel * PANEL, columns_of(call, panel) * 4);
        }
    }
}

// The same in bfloat16: a word has the numbers of two rows, of which the last one may stand alone.
void score_base_pairs(const InputCall& call, const Scores& some, const Rows& chunk, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t terms = some.count * call.terms, words = (chunk.count + 1) / 2;
    const auto fill = is_even(grid_of(a)) ? fill_score_pairs<EVEN_GRID> : fill_score_pairs<ANY>;
    for (int64_t b = start; b < stop; b += 2) {
        const int64_t word = (b - chunk.first) / 2;
        const bool alone = b + 1 == stop;
        fill(call, some, b, alone ? b : b + 1, call.score_bases + word * terms);
        for (int64_t panel = 0; panel < call.panels; ++panel) {
            const int64_t columns = columns_of(call, panel);
            const float* from = a.grad_out + b * a.outputs + panel * PANEL;
            float* to = call.gradients + (panel * words + word) * PANEL;
            for (int64_t h = 0; h < columns; h += LANES) {
                const Float second = alone ? Float{} : load_some(from + a.outputs + h, columns - h);
                store_some(to + h, pair_of(load_some(from + h, columns - h), second), columns - h);
            }
        }
    }
}

void choose_score_bases(const InputCall& call, const Scores& some, const Rows& chunk, int64_t start, int64_t stop) {
    (takes_pairs(call) ? score_base_pairs : score_bases)(call, some, chunk, start, stop);
}

// Sums up what the rows of a chunk say of the weights of some scores, in their order; after the last chunk the sums are
// added to the gradient.
void score_weight_gradient(const InputCall& call, const Scores& some, const Rows& chunk, int64_t panel) {
    const bool pairs = takes_pairs(call);
    const int64_t terms = some.count * call.terms, step = padded_terms(some.count, call.terms);
    const int64_t words = pairs ? (chunk.count + 1) / 2 : chunk.count;
    const float* gradients = call.gradients + panel * words * PANEL;
    float* sums = call.score_sums + panel * PANEL * step;
    if (!chunk.first) memset(sums, 0, PANEL * step * 4);
    const auto product = pairs ? add_product<PAIRS> : add_product<NUMBERS>;
    product(gradients, 1, PANEL, call.score_bases, terms, columns_of(call, panel), words, terms, sums, step);
    if (chunk.first + chunk.count == call.a.rows) add_score_sums(call, some, panel, sums);
}

}  // namespace
