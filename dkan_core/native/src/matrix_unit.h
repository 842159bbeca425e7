// Products by the matrix unit of a processor (AMX): its tiles have 16 rows of 16 words, with two numbers in bfloat16 each.

#pragma once

#include <cstdint>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AMX_BF16__)

constexpr bool HAS_MATRIX_UNIT = true;
constexpr int64_t SIDE = 16;  // rows of a tile, and words of a row
// The compiler does not know which memory the instructions read.
inline void finish_stores() { asm volatile("" ::: "memory"); }

// Has the tiles of this thread for as long as it lives.
struct Tiles {
    Tiles() {
        struct alignas(64) {
            uint8_t palette, start_row, reserved[14];
            uint16_t row_bytes[16];
            uint8_t rows[16];
        } shapes = {1, 0, {}, {}, {}};
        for (int tile = 0; tile < 8; ++tile) {
            shapes.row_bytes[tile] = 4 * SIDE;
            shapes.rows[tile] = SIDE;
        }
        finish_stores();
        _tile_loadconfig(&shapes);
    }
    ~Tiles() {
        _tile_release();
        finish_stores();
    }
};

// C += A B for one or two tiles of rows and of columns; steps are those from row to row, in words.
template <int ROWS, int COLUMNS>
inline void add_tiles(
    const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t depth, float* c, int64_t c_step) {
    const float* next_a = a + SIDE * a_step;
    float* next_c = c + SIDE * c_step;
    _tile_loadd(0, c, 4 * c_step);
    if constexpr (COLUMNS == 2) _tile_loadd(1, c + SIDE, 4 * c_step);
    if constexpr (ROWS == 2) _tile_loadd(2, next_c, 4 * c_step);
    if constexpr (ROWS == 2 && COLUMNS == 2) _tile_loadd(3, next_c + SIDE, 4 * c_step);
    for (int64_t k = 0; k < depth; k += SIDE, b += SIDE * b_step) {
        _tile_loadd(4, a + k, 4 * a_step);
        _tile_loadd(6, b, 4 * b_step);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (COLUMNS == 2) {
            _tile_loadd(7, b + SIDE, 4 * b_step);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (ROWS == 2) {
            _tile_loadd(5, next_a + k, 4 * a_step);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (COLUMNS == 2) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, 4 * c_step);
    if constexpr (COLUMNS == 2) _tile_stored(1, c + SIDE, 4 * c_step);
    if constexpr (ROWS == 2) _tile_stored(2, next_c, 4 * c_step);
    if constexpr (ROWS == 2 && COLUMNS == 2) _tile_stored(3, next_c + SIDE, 4 * c_step);
}

template <int COLUMNS>
inline void add_tile_columns(
    const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t rows, int64_t depth, float* c, int64_t c_step) {
    int64_t row = 0;
    for (; row + SIDE < rows; row += 2 * SIDE) {
        add_tiles<2, COLUMNS>(a + row * a_step, a_step, b, b_step, depth, c + row * c_step, c_step);
    }
    if (row < rows) add_tiles<1, COLUMNS>(a + row * a_step, a_step, b, b_step, depth, c + row * c_step, c_step);
}

// C += A B, where all have memory for whole tiles, and what A and B have behind `depth` multiplies to 0.
inline void multiply_tiles(
    const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t rows, int64_t depth, int64_t columns, float* c,
    int64_t c_step) {
    const Tiles tiles;
    int64_t column = 0;
    for (; column + SIDE < columns; column += 2 * SIDE) {
        add_tile_columns<2>(a, a_step, b + column, b_step, rows, depth, c + column, c_step);
    }
    if (column < columns) add_tile_columns<1>(a, a_step, b + column, b_step, rows, depth, c + column, c_step);
}

#else

constexpr bool HAS_MATRIX_UNIT = false;
inline void multiply_tiles(const float*, int64_t, const float*, int64_t, int64_t, int64_t, int64_t, float*, int64_t) {}

#endif

}  // namespace
