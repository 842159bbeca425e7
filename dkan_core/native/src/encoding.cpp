// Numbers of a column to codes, and codes of columns to the row-major bytes that a shard holds (see dkan_core/data/encoding/bulk.py). A value's code
// is decided by comparisons with edges alone, so that every variant gives the same bytes.

#include "arguments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace {

using dkan::Column;

constexpr int64_t BUCKETS = 1024;
// The code of what is null, NaN or infinite.
constexpr uint8_t MISSING = 0;
// Above, a search by halves takes fewer comparisons.
constexpr int64_t MAX_STEPS = 4;
constexpr int64_t MAX_EDGES = 255;

// Where the edges are among evenly wide buckets between the first and the last one: of a value in a bucket, all edges of
// the buckets before are below, and all of those behind are above, as the bucket never falls where the value rises.
template <typename Number>
struct Search {
    Number edges[MAX_EDGES + 1 + MAX_STEPS];
    uint8_t codes[MAX_EDGES + 1];
    uint8_t before[BUCKETS];
    Number low, scale;
    int64_t steps;

    explicit Search(const Column& column) {
        const Number* given = static_cast<const Number*>(column.edges);
        const int64_t count = column.edge_count;
        std::copy_n(given, count, edges);
        std::fill(edges + count, edges + MAX_EDGES + 1 + MAX_STEPS, std::numeric_limits<Number>::infinity());
        std::copy_n(column.codes, count + 1, codes);
        std::fill(codes + count + 1, codes + MAX_EDGES + 1, column.codes[count]);
        low = count ? edges[0] : 0;
        scale = count ? BUCKETS / (edges[count - 1] - edges[0]) : 0;
        if (!(scale < std::numeric_limits<Number>::max())) scale = 0;
        int64_t in_bucket[BUCKETS] = {};
        for (int64_t edge = 0; edge < count; ++edge) ++in_bucket[bucket(edges[edge])];
        int64_t sum = 0;
        steps = 0;
        for (int64_t index = 0; index < BUCKETS; ++index) {
            before[index] = static_cast<uint8_t>(sum);
            sum += in_bucket[index];
            steps = std::max(steps, in_bucket[index]);
        }
    }

    int64_t bucket(Number value) const {
        // Written so that NaN and what is below give 0.
        const Number position = (value - low) * scale;
        const Number above = position > 0 ? position : 0;
        return static_cast<int32_t>(above < BUCKETS - 1 ? above : BUCKETS - 1);
    }
};

// The last argument is a constant: its loop is unrolled.
template <typename Number, typename Steps>
inline void encode_by_bucket(const Search<Number>& search, const Number* values, int64_t count, uint8_t* out, Steps steps) {
    for (int64_t row = 0; row < count; ++row) {
        const Number value = values[row];
        const int64_t first = search.before[search.bucket(value)];
        int64_t below = first;
        for (int64_t step = 0; step < steps; ++step) below += value >= search.edges[first + step];
        out[row] = std::isfinite(value) ? search.codes[below] : MISSING;
    }
}

template <typename Number>
inline void encode_by_halves(const Search<Number>& search, const Number* values, int64_t count, uint8_t* out) {
    for (int64_t row = 0; row < count; ++row) {
        const Number value = values[row];
        int64_t below = 0;
        for (int64_t half = 128; half > 0; half /= 2) below += value >= search.edges[below + half - 1] ? half : 0;
        out[row] = std::isfinite(value) ? search.codes[below] : MISSING;
    }
}

template <typename Number>
void encode_values(const Search<Number>& search, const Number* values, int64_t count, uint8_t* out) {
    switch (search.steps) {
        case 0:
        case 1: return encode_by_bucket(search, values, count, out, std::integral_constant<int64_t, 1>());
        case 2: return encode_by_bucket(search, values, count, out, std::integral_constant<int64_t, 2>());
        case 3:
        case MAX_STEPS: return encode_by_bucket(search, values, count, out, std::integral_constant<int64_t, MAX_STEPS>());
        default: return encode_by_halves(search, values, count, out);
    }
}

// Arrow's bitmap: least significant bit first, 0 is null.
void mark_nulls(const Column& column, int64_t start, int64_t count, uint8_t* out) {
    for (int64_t row = 0; row < count; ++row) {
        const int64_t bit = column.valid_offset + start + row;
        out[row] = column.valid[bit / 8] >> (bit % 8) & 1 ? out[row] : MISSING;
    }
}

// Eight rows of eight bytes, turned: byte j of row i becomes byte i of row j.
inline void transpose(uint64_t rows[8]) {
    for (int half = 4, mask_index = 0; half > 0; half /= 2, ++mask_index) {
        constexpr uint64_t MASKS[3] = {0x00000000FFFFFFFFu, 0x0000FFFF0000FFFFu, 0x00FF00FF00FF00FFu};
        const uint64_t mask = MASKS[mask_index];
        for (int row = 0; row < 8; ++row) {
            if (row & half) continue;
            const uint64_t swapped = ((rows[row] >> (8 * half)) ^ rows[row + half]) & mask;
            rows[row + half] ^= swapped;
            rows[row] ^= swapped << (8 * half);
        }
    }
}

template <typename Number>
void encode_column(const Column& column, int64_t start, int64_t count) {
    uint8_t* out = column.out + start;
    encode_values(Search<Number>(column), static_cast<const Number*>(column.values) + start, count, out);
    if (column.valid) mark_nulls(column, start, count, out);
}

}  // namespace

void DKAN_ENCODE(const dkan::Column& column, int64_t start, int64_t count) {
    (column.is_double ? encode_column<double> : encode_column<float>)(column, start, count);
}

// Columns `first` to the one before `last` of codes [columns, stride] to the records of their rows.
void DKAN_SCATTER(const dkan::Scatter& a, int64_t first, int64_t last, int64_t start, int64_t stop) {
    for (int64_t row = start; row < stop; row += 8) {
        const int64_t rows = std::min<int64_t>(8, stop - row);
        uint8_t* to[8];
        for (int64_t each = 0; each < rows; ++each) to[each] = a.out + a.indices[row + each] * a.row_bytes;
        for (int64_t column = first; column < last; column += 8) {
            const int64_t size = std::min<int64_t>(8, last - column);
            uint64_t turned[8] = {};
            for (int64_t each = 0; each < size; ++each) memcpy(turned + each, a.codes + (column + each) * a.stride + row, 8);
            transpose(turned);
            if (size == 8) {
                for (int64_t each = 0; each < rows; ++each) memcpy(to[each] + column, turned + each, 8);
            } else {
                for (int64_t each = 0; each < rows; ++each) memcpy(to[each] + column, turned + each, size);
            }
        }
    }
}
