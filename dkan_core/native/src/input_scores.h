// The scores of a first layer that have no tables: row by row through the basis and a product, some of them at a time. Of
// bytes, the basis is looked up.
//
// Products in bfloat16 have two numbers in a word. A float is one number, or two parts, of which the second is what the
// first one leaves out: what a matrix unit then makes of three products is right to about 2^-16.

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
    const int64_t* features = call.score_features.data() + some.first;
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

// How many numbers in bfloat16 stand for one of a product's; 0: it is a float.
inline int64_t parts_of(const InputCall& call) {
    return HAS_PAIRS && (call.a.bf16_parts < 2 || HAS_MATRIX_UNIT) ? call.a.bf16_parts : 0;
}

// Calls `run` with the parts of both operands of each product that a product is the sum of. The one that is left out would
// be below the rounding of the others.
template <typename Run>
inline void for_each_product(int64_t parts, const Run& run) {
    for (int64_t left = 0; left < parts; ++left) {
        for (int64_t right = 0; left + right < parts; ++right) run(left, right);
    }
}

// Words that the terms of some scores fill, of a part as many as whole tiles have.
inline int64_t words_of(const InputCall& call, const Scores& some) {
    const int64_t terms = some.count * call.terms;
    return parts_of(call) ? padded((terms + 1) / 2) : terms;
}

// Words from a part of the terms of pairs of rows to the next.
inline int64_t part_of(const InputCall& call, const Scores& some, const Rows& chunk) {
    return padded((chunk.count + 1) / 2) * some.count * call.terms;
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

// Calls `run` with the terms of some scores of a row, a vector of scores after the other.
template <int FIXED, typename Run>
inline void for_each_vector(const InputCall& call, const Scores& some, int64_t b, const Run& run) {
    const Grid grid = grid_of(call.a);
    float buffer[SCORES_AT_A_TIME];
    const float* x = scores_of(call, some, b, buffer);
    for (int64_t i = 0; i < some.count; i += LANES) {
        Float terms[MAX_TERMS];
        terms_of<FIXED>(grid, load_some(x + i, some.count - i), terms);
        for (int64_t t = 0; t <= centers_of<FIXED>(grid.num_centers); ++t) {
            run(t * some.count + i, some.count - i, terms[t]);
        }
    }
}

// The terms of some scores of a row.
template <int FIXED>
void fill_scores(const InputCall& call, const Scores& some, int64_t b, float* to) {
    for_each_vector<FIXED>(call, some, b, [&](int64_t offset, int64_t count, Float terms) {
        store_some(to + offset, terms, count);
    });
}

// The same in parts, each followed by zeros up to its last word.
template <int FIXED>
void fill_score_parts(const InputCall& call, const Scores& some, int64_t b, float* words) {
    const int64_t step = 2 * words_of(call, some), parts = parts_of(call);
    uint16_t* to = reinterpret_cast<uint16_t*>(words);
    for_each_vector<FIXED>(call, some, b, [&](int64_t offset, int64_t count, Float terms) {
        for (int64_t part = 0; part < parts; ++part) {
            store_halves(to + part * step + offset, terms, count);
            terms -= rounded(terms);
        }
    });
    for (int64_t part = 0; part < parts; ++part) clear_rest(call, some, to + part * step);
}

// The same of bytes.
template <int FIXED>
void fill_byte_parts(const InputCall& call, const Scores& some, int64_t b, float* words) {
    const int64_t G = centers_of<FIXED>(call.a.num_centers);
    const uint8_t* row = call.a.bytes + b * call.a.features;
    const int64_t* features = call.score_features.data() + some.first;
    for (int64_t part = 0; part < parts_of(call); ++part) {
        const uint16_t* table = call.byte_parts.data() + part * call.byte_parts.size() / 2;
        uint16_t* to = reinterpret_cast<uint16_t*>(words + part * words_of(call, some));
        for (int64_t i = 0; i < some.count; ++i) {
            const uint16_t* terms = table + row[features[i]] * (G + 1);
            memcpy(to + i * G, terms, 2 * G);
            to[some.count * G + i] = terms[G];
        }
        clear_rest(call, some, to);
    }
}

// The terms of two rows in parts, a word for each pair of the same term.
template <int FIXED>
void fill_score_pairs(const InputCall& call, const Scores& some, int64_t b, int64_t next, float* to, int64_t step) {
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
            for (int64_t part = 0; part < parts_of(call); ++part) {
                store_some(to + part * step + t * some.count + i, pair_of(terms[t], next_terms[t]), count);
                terms[t] -= rounded(terms[t]);
                next_terms[t] -= rounded(next_terms[t]);
            }
        }
    }
}

// The same of bytes.
template <int FIXED>
void fill_byte_pairs(const InputCall& call, const Scores& some, int64_t b, int64_t next, float* to, int64_t step) {
    const int64_t G = centers_of<FIXED>(call.a.num_centers);
    const uint8_t* row = call.a.bytes + b * call.a.features;
    const uint8_t* next_row = call.a.bytes + next * call.a.features;
    const int64_t* features = call.score_features.data() + some.first;
    for (int64_t part = 0; part < parts_of(call); ++part) {
        const uint16_t* table = call.byte_parts.data() + part * call.byte_parts.size() / 2;
        uint32_t* words = reinterpret_cast<uint32_t*>(to + part * step);
        for (int64_t i = 0; i < some.count; ++i) {
            const uint16_t* low = table + row[features[i]] * (G + 1);
            const uint16_t* high = table + next_row[features[i]] * (G + 1);
            for (int64_t g = 0; g < G; ++g) words[i * G + g] = low[g] | static_cast<uint32_t>(high[g]) << 16;
            words[some.count * G + i] = low[G] | static_cast<uint32_t>(high[G]) << 16;
        }
    }
}

float* score_weights_of(const InputCall& call, const Scores& some, int64_t panel) {
    return call.score_weights + panel * score_weights_size(call) + some.first * call.terms * PANEL;
}

// The weights of some scores for an output, in the order of their terms, and `step` from term to term.
inline void copy_weights(const InputCall& call, const Scores& some, int64_t output, float* to, int64_t step) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers;
    for (int64_t i = 0; i < some.count; ++i) {
        const int64_t offset = output * a.inputs + call.score_inputs[some.first + i];
        for (int64_t g = 0; g < G; ++g) to[term_of(call, some, i, g) * step] = a.spline[offset * G + g];
        to[(G * some.count + i) * step] = a.base[offset];
    }
}

// The weights of the scores in the order of their terms, with outputs as columns.
void score_weights(const InputCall& call, int64_t panel) {
    const int64_t columns = columns_of(call, panel), parts = parts_of(call);
    Floats memory;
    float* rows = memory.make(PADDING * 2 * padded(std::min(call.scores, SCORES_AT_A_TIME) * call.terms));
    for (int64_t next = 0; next < call.scores; next += SCORES_AT_A_TIME) {
        const Scores some = scores_from(call, next);
        const int64_t words = words_of(call, some);
        float* to = score_weights_of(call, some, panel);
        if (columns < PANEL) memset(to, 0, std::max<int64_t>(parts, 1) * words * PANEL * 4);
        for (int64_t j = 0; j < columns; ++j) {
            const int64_t output = panel * PANEL + j, row = j % LANES;
            if (!parts) {
                copy_weights(call, some, output, to + j, PANEL);
                continue;
            }
            // As many as a vector has are written together.
            if (!row) memset(rows, 0, LANES * 2 * words * 4);
            copy_weights(call, some, output, rows + row * 2 * words, 1);
            if (row + 1 < LANES && j + 1 < columns) continue;
            for (int64_t part = 0; part < parts; ++part) {
                turn_pairs(rows, words, to + part * words * PANEL + j - row, PANEL);
            }
        }
    }
}

// How the terms of some scores of a row are filled in.
inline auto score_filler(const InputCall& call) {
    const bool even = is_even(grid_of(call.a));
    if (!parts_of(call)) return even ? fill_scores<EVEN_GRID> : fill_scores<ANY>;
    if (call.a.bytes) return even ? fill_byte_parts<EVEN_GRID> : fill_byte_parts<ANY>;
    return even ? fill_score_parts<EVEN_GRID> : fill_score_parts<ANY>;
}

inline auto score_pair_filler(const InputCall& call) {
    const bool even = is_even(grid_of(call.a));
    if (call.a.bytes) return even ? fill_byte_pairs<EVEN_GRID> : fill_byte_pairs<ANY>;
    return even ? fill_score_pairs<EVEN_GRID> : fill_score_pairs<ANY>;
}

// Adds some scores of some rows to the sums of these, in panels of `step` numbers.
void add_scores(const InputCall& call, const Scores& some, const Rows& rows, float* bases, float* sums, int64_t step) {
    const int64_t words = words_of(call, some), parts = parts_of(call), row = std::max<int64_t>(parts, 1) * words;
    const auto fill = score_filler(call);
    for (int64_t r = 0; r < rows.count; ++r) fill(call, some, rows.first + r, bases + r * row);
    for (int64_t panel = 0; panel < call.panels; ++panel) {
        const float* weights = score_weights_of(call, some, panel);
        const int64_t columns = columns_of(call, panel);
        float* to = sums + panel * step;
        if (!parts) add_product(bases, row, 1, weights, PANEL, rows.count, words, columns, to, PANEL);
        for_each_product(parts, [&](int64_t left, int64_t right) {
            add_product<PAIRS>(bases + left * words, row, 1, weights + right * words * PANEL, PANEL, rows.count, words,
                               columns, to, PANEL);
        });
    }
}

// Adds to the gradient of a panel's weights of some scores what has been summed up for it.
void add_score_sums(const InputCall& call, const Scores& some, int64_t panel, const float* from) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, columns = columns_of(call, panel);
    for (int64_t j = 0; j < columns; ++j, from += padded_terms(some.count, call.terms)) {
        for (int64_t i = 0; i < some.count; ++i) {
            const int64_t offset = (panel * PANEL + j) * a.inputs + call.score_inputs[some.first + i];
            for (int64_t g = 0; g < G; ++g) a.grad_spline[offset * G + g] += from[term_of(call, some, i, g)];
            a.grad_base[offset] += from[G * some.count + i];
        }
    }
}

// Words of a part of the gradient of an output: more than the pairs of rows, since a power of two from output to output
// would put all of them into the same places of the nearest cache.
inline int64_t gradient_words(const InputCall& call) { return padded((call.a.rows + 1) / 2) + PADDING; }

// The gradient of rows in panels, for the gradient of the weights of scores. Of two rows in bfloat16, a word stands
// beside those of other rows: what a tile takes as a row is one output's.
void pack_gradients(const InputCall& call, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t step = gradient_words(call), end = (a.rows + 1) / 2;
    for (int64_t panel = 0; panel < call.panels; ++panel) {
        const int64_t columns = columns_of(call, panel);
        const float* from = a.grad_out + panel * PANEL;
        float* to = call.gradients + panel * gradient_size(call);
        if (!parts_of(call)) {
            for (int64_t b = start; b < stop; ++b) copy_some(from + b * a.outputs, columns, to + b * PANEL);
            continue;
        }
        for (int64_t part = 0; part < parts_of(call); ++part, to += PANEL * step) {
            for (int64_t b = start; b < stop; b += 2) {
                float words[PANEL];
                for (int64_t h = 0; h < columns; h += LANES) {
                    const float* row = from + b * a.outputs + h;
                    Float here = load_some(row, columns - h);
                    Float next = b + 1 < a.rows ? load_some(row + a.outputs, columns - h) : Float{};
                    if (part) here -= rounded(here), next -= rounded(next);
                    store(words + h, pair_of(here, next));
                }
                for (int64_t h = 0; h < columns; ++h) to[h * step + b / 2] = words[h];
            }
            if (stop < a.rows) continue;
            for (int64_t h = 0; h < columns; ++h) memset(to + h * step + end, 0, (padded(end) - end) * 4);
        }
    }
}

// Of rows of a chunk the terms of some scores.
void score_bases(const InputCall& call, const Scores& some, const Rows& chunk, int64_t start, int64_t stop) {
    const int64_t terms = some.count * call.terms, parts = parts_of(call), step = part_of(call, some, chunk);
    if (!parts) {
        const auto fill = score_filler(call);
        for (int64_t b = start; b < stop; ++b) fill(call, some, b, call.score_bases + (b - chunk.first) * terms);
        return;
    }
    const auto fill = score_pair_filler(call);
    for (int64_t b = start; b < stop; b += 2) {
        // The gradient of a row that is not there is 0.
        fill(call, some, b, std::min(b + 1, call.a.rows - 1), call.score_bases + (b - chunk.first) / 2 * terms, step);
    }
    if (stop < call.a.rows) return;
    const int64_t end = (stop - chunk.first + 1) / 2;
    for (int64_t part = 0; part < parts; ++part) {
        memset(call.score_bases + part * step + end * terms, 0, (padded(end) - end) * terms * 4);
    }
}

// Sums up what the rows of a chunk say of the weights of some scores, in their order; after the last chunk the sums are
// added to the gradient.
void score_weight_gradient(const InputCall& call, const Scores& some, const Rows& chunk, int64_t panel) {
    const int64_t terms = some.count * call.terms, step = padded_terms(some.count, call.terms);
    const int64_t columns = columns_of(call, panel), parts = parts_of(call), part = part_of(call, some, chunk);
    const int64_t gradient_step = gradient_words(call);
    const float* gradients = call.gradients + panel * gradient_size(call);
    float* sums = call.score_sums + panel * PANEL * step;
    if (!chunk.first) memset(sums, 0, PANEL * step * 4);
    if (!parts) {
        gradients += chunk.first * PANEL;
        add_product(gradients, 1, PANEL, call.score_bases, terms, columns, chunk.count, terms, sums, step);
    }
    for_each_product(parts, [&](int64_t left, int64_t right) {
        add_product<PAIRS>(gradients + left * PANEL * gradient_step + chunk.first / 2, gradient_step, 1,
                           call.score_bases + right * part, terms, columns, padded((chunk.count + 1) / 2), terms, sums, step);
    });
    if (chunk.first + chunk.count == call.a.rows) add_score_sums(call, some, panel, sums);
}

}  // namespace
