// Products of matrices that fit the nearest caches, for passes that make their operands on the way.

#pragma once

#include "matrix_unit.h"
#include "pairs.h"
#include "vectors.h"

namespace {

// Vectors of a tile of sums that stay in registers: 6 x 4 of the 32 that AVX-512 has, 6 x 2 of the 16 of others.
constexpr int64_t TILE_ROWS = 6, TILE_VECTORS = LANES == 16 ? 4 : 2;
// Terms of a sum at a time: their part of the right operand stays in the nearest cache while all rows pass.
constexpr int64_t DEPTH = 96;

// What the words of A and B are: numbers, or pairs of numbers in bfloat16.
constexpr bool NUMBERS = false, PAIRS = true;

// C += A B for `ROWS` rows and `VECTORS` vectors of columns.
template <bool WORDS, int ROWS, int VECTORS>
inline void add_tile(
    const float* a, int64_t row_step, int64_t term_step, const float* b, int64_t b_step, int64_t terms,
    float* c, int64_t c_step) {
    Float sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = load(c + r * c_step + v * LANES);
    }
    for (int64_t k = 0; k < terms; ++k) {
        Float right[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) right[v] = load(b + k * b_step + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const Float left = splat(a[r * row_step + k * term_step]);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) {
                if constexpr (WORDS == PAIRS) {
                    sums[r][v] = add_pairs(sums[r][v], left, right[v]);
                } else {
                    sums[r][v] += left * right[v];
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) store(c + r * c_step + v * LANES, sums[r][v]);
    }
}

template <bool WORDS, int VECTORS>
inline void add_columns(
    const float* a,
    int64_t row_step,
    int64_t term_step,
    const float* b,
    int64_t b_step,
    int64_t rows,
    int64_t terms,
    float* c,
    int64_t c_step) {
    int64_t row = 0;
    for (; row + TILE_ROWS <= rows; row += TILE_ROWS) {
        add_tile<WORDS, TILE_ROWS, VECTORS>(a + row * row_step, row_step, term_step, b, b_step, terms, c + row * c_step, c_step);
    }
    // Rows by themselves would load the right operand again for each of them.
    if (row + 4 <= rows) {
        add_tile<WORDS, 4, VECTORS>(a + row * row_step, row_step, term_step, b, b_step, terms, c + row * c_step, c_step);
        row += 4;
    }
    for (; row < rows; ++row) {
        add_tile<WORDS, 1, VECTORS>(a + row * row_step, row_step, term_step, b, b_step, terms, c + row * c_step, c_step);
    }
}

// C += A B for `columns` columns, and maybe more up to a whole vector. A word of A stands at
// `row * row_step + term * term_step`, which also reads a matrix the other way round; the rows of B and C are `b_step`
// and `c_step` apart. Of pairs, the words of a row of A are adjacent, and all have memory for whole tiles.
template <bool WORDS = NUMBERS>
inline void add_product(
    const float* a,
    int64_t row_step,
    int64_t term_step,
    const float* b,
    int64_t b_step,
    int64_t rows,
    int64_t depth,
    int64_t columns,
    float* c,
    int64_t c_step) {
    if (WORDS == PAIRS && HAS_MATRIX_UNIT) return multiply_tiles(a, row_step, b, b_step, rows, depth, columns, c, c_step);
    for (int64_t k = 0; k < depth; k += DEPTH) {
        const int64_t terms = depth - k < DEPTH ? depth - k : DEPTH;
        const float* left = a + k * term_step;
        const float* right = b + k * b_step;
        int64_t column = 0;
        for (; column + (TILE_VECTORS - 1) * LANES < columns; column += TILE_VECTORS * LANES) {
            add_columns<WORDS, TILE_VECTORS>(left, row_step, term_step, right + column, b_step, rows, terms, c + column, c_step);
        }
        for (; column < columns; column += LANES) {
            add_columns<WORDS, 1>(left, row_step, term_step, right + column, b_step, rows, terms, c + column, c_step);
        }
    }
}

}  // namespace
