// What a row of a batch takes from tables, and adds to them on the way back.

#pragma once

#include "input_layer.h"
#include "vectors.h"

#include <vector>

namespace {

using dkan::PANEL;

// The rows of a table, and which of them each row of the batch takes.
struct Table {
    float* first;
    int64_t step;           // from row to row
    const int32_t* indices;  // [B]
    bool is_far;            // no cache holds it

    float* row(int64_t b) const { return first + indices[b] * step; }
};

// Adds a row's entries to where its sums begin.
inline void gather(const std::vector<Table>& tables, int64_t b, int64_t columns, const float* from, float* to) {
    if (columns == PANEL) {
        constexpr int64_t VECTORS = PANEL / LANES;
        Float sums[VECTORS];
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) sums[v] = load(from + v * LANES);
        for (const Table& table : tables) {
            const float* entry = table.row(b);
#pragma GCC unroll 16
            for (int64_t v = 0; v < VECTORS; ++v) sums[v] += load(entry + v * LANES);
        }
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) store(to + v * LANES, sums[v]);
        return;
    }
    for (int64_t h = 0; h < columns; h += LANES) {
        Float total = load_some(from + h, columns - h);
        for (const Table& table : tables) total += load_some(table.row(b) + h, columns - h);
        store_some(to + h, total, columns - h);
    }
}

// Fetches a row's entries of tables that no cache holds, while those of the row before are added.
template <int WRITE>
DKAN_PREFETCH void prefetch_far(const std::vector<Table>& tables, int64_t b, int64_t columns) {
    constexpr int64_t LINE = 16;
    for (const Table& table : tables) {
        if (!table.is_far) continue;
        const float* entry = table.row(b);
        for (int64_t h = 0; h < columns; h += LINE) __builtin_prefetch(entry + h, WRITE, 3);
    }
}

inline void add_row(const float* from, int64_t columns, float* to) {
    for (int64_t h = 0; h < columns; h += LANES) {
        store_some(to + h, load_some(to + h, columns - h) + load_some(from + h, columns - h), columns - h);
    }
}

// Adds a row's gradient to the entries that it has taken.
inline void add_to_entries(const std::vector<Table>& tables, int64_t b, const float* gradient, int64_t columns) {
    if (columns < PANEL) {
        for (const Table& table : tables) add_row(gradient, columns, table.row(b));
        return;
    }
    constexpr int64_t VECTORS = PANEL / LANES;
    Float parts[VECTORS];
#pragma GCC unroll 16
    for (int64_t v = 0; v < VECTORS; ++v) parts[v] = load(gradient + v * LANES);
    for (const Table& table : tables) {
        float* entry = table.row(b);
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) store(entry + v * LANES, load(entry + v * LANES) + parts[v]);
    }
}

}  // namespace
