// The scores of a first layer that have no tables: row by row through the basis and a product, some of them at a time. Of
// bytes, the basis is looked up.

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

// Whether products of scores are those of numbers in bfloat16.
inline bool takes_pairs(const InputCall& call) { return HAS_PAIRS && call.a.bf16; }

// Words that the terms of some scores fill: of numbers in bfloat16 as many as whole tiles have.
inline int64_t words_of(const InputCall& call, const Scores& some) {
    const int64_t terms = some.count * call.terms;
    return takes_pairs(call) ? padded((terms + 1) / 2) : terms;
}

// Where the term of a center stands: beside those of the other scores; of bytes, beside those of the other centers. The
// SiLU of all scores follow.
inline int64_t term_of(const InputCall& call, const Scores& some, int64_t i, int64_t g) {
    return call.a.bytes ? i * call.a.num_centers + g : g * some.count + i;
}

inline void clear_rest(const InputCall& call, const Scores& some, uint16_t* to) {
    const int64_t terms = some.count * call.terms;
    memset(to + terms, 0, (2 * words_of(call, some) - terms) * 2);
}

// The terms of some scores of a row. In bfloat16, zeros follow up to the last word.
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
    if constexpr (sizeof(Number) == 2) clear_rest(call, some, to);
}

// The same of bytes, in bfloat16.
template <int FIXED>
void fill_bytes(const InputCall& call, const Scores& some, int64_t b, float* words) {
    const int64_t G = centers_of<FIXED>(call.a.num_centers);
    const uint8_t* row = call.a.bytes + b * call.a.features;
    const int64_t* features = call.a.layout + 1 + some.first;
    uint16_t* to = reinterpret_cast<uint16_t*>(words);
    uint16_t* silu = to + some.count * G;
    for (int64_t i = 0; i < some.count; ++i) {
        const uint16_t* terms = call.byte_halves.data() + row[features[i]] * (G + 1);
        memcpy(to + i * G, terms, 2 * G);
        silu[i] = terms[G];
    }
    clear_rest(call, some, to);
}

// Those of two rows of bytes in bfloat16, a word for each pair of the same term.
template <int FIXED>
void fill_byte_pairs(const InputCall& call, const Scores& some, int64_t b, int64_t next, float* to) {
    const int64_t G = centers_of<FIXED>(call.a.num_centers);
    const uint8_t* row = call.a.bytes + b * call.a.features;
    const uint8_t* next_row = call.a.bytes + next * call.a.features;
    const int64_t* features = call.a.layout + 1 + some.first;
    uint32_t* words = reinterpret_cast<uint32_t*>(to);
    uint32_t* silu = words + some.count * G;
    for (int64_t i = 0; i < some.count; ++i) {
        const uint16_t* low = call.byte_halves.data() + row[features[i]] * (G + 1);
        const uint16_t* high = call.byte_halves.data() + next_row[features[i]] * (G + 1);
        for (int64_t g = 0; g < G; ++g) words[i * G + g] = low[g] | static_cast<uint32_t>(high[g]) << 16;
        silu[i] = low[G] | static_cast<uint32_t>(high[G]) << 16;
    }
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

float* score_weights_of(const InputCall& call, const Scores& some, int64_t panel) {
    return call.score_weights + panel * score_weights_size(call) + some.first * call.terms * PANEL;
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
        const int64_t words = words_of(call, some);
        float* to = score_weights_of(call, some, panel);
        // Words without a weight of their own, or with one alone.
        if (columns < PANEL || (pairs && 2 * words > some.count * call.terms)) memset(to, 0, words * PANEL * 4);
        for (int64_t i = 0; i < some.count; ++i) {
            for (int64_t j = 0; j < columns; ++j) {
                const int64_t place = (panel * PANEL + j) * a.inputs + some.first + i;
                for (int64_t g = 0; g < G; ++g) {
                    put_weight(pairs, a.spline[place * G + g], term_of(call, some, i, g), j, to);
                }
                put_weight(pairs, a.base[place], G * some.count + i, j, to);
            }
        }
    }
}

// How the terms of some scores of a row are filled in.
inline auto score_filler(const InputCall& call) {
    const bool even = is_even(grid_of(call.a));
    if (call.a.bytes) return even ? fill_bytes<EVEN_GRID> : fill_bytes<ANY>;
    if (takes_pairs(call)) return even ? fill_scores<EVEN_GRID, uint16_t> : fill_scores<ANY, uint16_t>;
    return even ? fill_scores<EVEN_GRID, float> : fill_scores<ANY, float>;
}

inline auto score_pair_filler(const InputCall& call) {
    const bool even = is_even(grid_of(call.a));
    if (call.a.bytes) return even ? fill_byte_pairs<EVEN_GRID> : fill_byte_pairs<ANY>;
    return even ? fill_score_pairs<EVEN_GRID> : fill_score_pairs<ANY>;
}

// Adds some scores of some rows to the sums of these, in panels of `step` numbers.
void add_scores(const InputCall& call, const Scores& some, const Rows& rows, float* bases, float* sums, int64_t step) {
    const int64_t words = words_of(call, some);
    const auto fill = score_filler(call);
    for (int64_t r = 0; r < rows.count; ++r) fill(call, some, rows.first + r, bases + r * words);
    const auto product = takes_pairs(call) ? add_product<PAIRS> : add_product<NUMBERS>;
    for (int64_t panel = 0; panel < call.panels; ++panel) {
        const float* weights = score_weights_of(call, some, panel);
        product(bases, words, 1, weights, PANEL, rows.count, words, columns_of(call, panel), sums + panel * step, PANEL);
    }
}

// Adds to the gradient of a panel's weights of some scores what has been summed up for it.
void add_score_sums(const InputCall& call, const Scores& some, int64_t panel, const float* from) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, columns = columns_of(call, panel);
    for (int64_t j = 0; j < columns; ++j, from += padded_terms(some.count, call.terms)) {
        const int64_t place = (panel * PANEL + j) * a.inputs + some.first;
        for (int64_t i = 0; i < some.count; ++i) {
            for (int64_t g = 0; g < G; ++g) a.grad_spline[(place + i) * G + g] += from[term_of(call, some, i, g)];
            a.grad_base[place + i] += from[G * some.count + i];
        }
    }
}

// The gradient of rows in panels, for the gradient of the weights of scores. Of two rows in bfloat16, a word stands
// beside those of other rows: what a tile takes as a row is one output's.
void pack_gradients(const InputCall& call, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    for (int64_t panel = 0; panel < call.panels; ++panel) {
        const int64_t columns = columns_of(call, panel);
        const float* from = a.grad_out + panel * PANEL;
        float* to = call.gradients + panel * call.gradient_size;
        if (!takes_pairs(call)) {
            for (int64_t b = start; b < stop; ++b) memcpy(to + b * PANEL, from + b * a.outputs, columns * 4);
            continue;
        }
        const int64_t step = call.gradient_size / PANEL;
        for (int64_t b = start; b < stop; b += 2) {
            float words[PANEL];
            for (int64_t h = 0; h < columns; h += LANES) {
                const float* row = from + b * a.outputs + h;
                const Float next = b + 1 < a.rows ? load_some(row + a.outputs, columns - h) : Float{};
                store(words + h, pair_of(load_some(row, columns - h), next));
            }
            for (int64_t h = 0; h < columns; ++h) to[h * step + b / 2] = words[h];
        }
        if (stop < a.rows) continue;
        const int64_t end = (a.rows + 1) / 2;
        for (int64_t h = 0; h < columns; ++h) memset(to + h * step + end, 0, (padded(end) - end) * 4);
    }
}

// Of rows of a chunk the terms of some scores.
void score_bases(const InputCall& call, const Scores& some, const Rows& chunk, int64_t start, int64_t stop) {
    const int64_t terms = some.count * call.terms;
    if (!takes_pairs(call)) {
        const auto fill = score_filler(call);
        for (int64_t b = start; b < stop; ++b) fill(call, some, b, call.score_bases + (b - chunk.first) * terms);
        return;
    }
    const auto fill = score_pair_filler(call);
    for (int64_t b = start; b < stop; b += 2) {
        // The gradient of a row that is not there is 0.
        fill(call, some, b, std::min(b + 1, call.a.rows - 1), call.score_bases + (b - chunk.first) / 2 * terms);
    }
    if (stop < call.a.rows) return;
    const int64_t end = (stop - chunk.first + 1) / 2;
    memset(call.score_bases + end * terms, 0, (padded(end) - end) * terms * 4);
}

// Sums up what the rows of a chunk say of the weights of some scores, in their order; after the last chunk the sums are
// added to the gradient.
void score_weight_gradient(const InputCall& call, const Scores& some, const Rows& chunk, int64_t panel) {
    const int64_t terms = some.count * call.terms, step = padded_terms(some.count, call.terms);
    const int64_t columns = columns_of(call, panel);
    const float* gradients = call.gradients + panel * call.gradient_size;
    float* sums = call.score_sums + panel * PANEL * step;
    if (!chunk.first) memset(sums, 0, PANEL * step * 4);
    if (takes_pairs(call)) {
        add_product<PAIRS>(gradients + chunk.first / 2, call.gradient_size / PANEL, 1, call.score_bases, terms, columns,
                           padded((chunk.count + 1) / 2), terms, sums, step);
    } else {
        add_product(gradients + chunk.first * PANEL, 1, PANEL, call.score_bases, terms, columns, chunk.count, terms, sums, step);
    }
    if (chunk.first + chunk.count == call.a.rows) add_score_sums(call, some, panel, sums);
}

}  // namespace
