// Sorts of what a preparation reads: the distinct values of a column, and the order of the keys of rows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#define DKAN_EXPORT extern "C" __attribute__((visibility("default")))

// dkan_core/native/library.py has the same structure; the order of the fields is the contract between the two.
// U distinct values, at most as many as there are values.
struct Distinct {
    const void* values;  // [B] of float, or of double
    void* distinct;      // [U] rising, of the same type
    int64_t* up_to;      // [U] values up to and including each one
    int64_t rows;        // B
    int64_t is_double;
    int64_t finite;      // set: values that are neither NaN nor infinite
    int64_t most;        // set: how often the most frequent one occurs
};

namespace {

constexpr int DIGIT_BITS = 11;
constexpr int64_t DIGITS = 1 << DIGIT_BITS;

// All numbers of a type in their order as whole numbers: the bits of positive ones with the highest set, those of
// negative ones turned around. 0.0 comes behind -0.0.
template <typename Number>
struct Ordered {
    using Bits = std::conditional_t<sizeof(Number) == 4, uint32_t, uint64_t>;
    static constexpr Bits SIGN = Bits(1) << (8 * sizeof(Bits) - 1);

    static Bits key(Number value) {
        Bits bits;
        memcpy(&bits, &value, sizeof bits);
        return bits & SIGN ? ~bits : bits | SIGN;
    }

    static Number value(Bits key) {
        const Bits bits = key & SIGN ? key & ~SIGN : ~key;
        Number value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
};

// Sorts keys by digits, the lowest first; digits that are the same in all are passed over.
template <typename Bits>
void sort_keys(std::vector<Bits>& keys) {
    constexpr int PASSES = (8 * sizeof(Bits) + DIGIT_BITS - 1) / DIGIT_BITS;
    std::vector<int64_t> starts(PASSES * DIGITS);
    for (const Bits key : keys) {
        for (int pass = 0; pass < PASSES; ++pass) ++starts[pass * DIGITS + (key >> (pass * DIGIT_BITS)) % DIGITS];
    }
    std::vector<Bits> sorted(keys.size());
    for (int pass = 0; pass < PASSES; ++pass) {
        int64_t* start = starts.data() + pass * DIGITS;
        if (std::count(start, start + DIGITS, static_cast<int64_t>(keys.size()))) continue;
        for (int64_t digit = 0, sum = 0; digit < DIGITS; ++digit) {
            const int64_t count = start[digit];
            start[digit] = sum;
            sum += count;
        }
        for (const Bits key : keys) sorted[start[(key >> (pass * DIGIT_BITS)) % DIGITS]++] = key;
        keys.swap(sorted);
    }
}

template <typename Number>
int64_t find_distinct(Distinct& a) {
    using Bits = typename Ordered<Number>::Bits;
    const Number* values = static_cast<const Number*>(a.values);
    std::vector<Bits> keys;
    keys.reserve(a.rows);
    bool has_zero = false, has_negative_zero = false;
    for (int64_t row = 0; row < a.rows; ++row) {
        const Number value = values[row];
        if (!std::isfinite(value)) continue;
        has_zero |= value == 0 && !std::signbit(value);
        has_negative_zero |= value == 0 && std::signbit(value);
        keys.push_back(Ordered<Number>::key(value));
    }
    if (has_zero && has_negative_zero) return -1;
    sort_keys(keys);
    Number* distinct = static_cast<Number*>(a.distinct);
    const int64_t count = static_cast<int64_t>(keys.size());
    int64_t found = 0, before = 0;
    a.finite = count;
    a.most = 0;
    for (int64_t row = 0; row < count; ++row) {
        if (row + 1 < count && keys[row + 1] == keys[row]) continue;
        distinct[found] = Ordered<Number>::value(keys[row]);
        a.up_to[found++] = row + 1;
        a.most = std::max(a.most, row + 1 - before);
        before = row + 1;
    }
    return found;
}

}  // namespace

// Returns how many distinct values there are; -1 where both 0.0 and -0.0 occur, which are equal.
DKAN_EXPORT int64_t dkan_distinct(Distinct* a) { return a->is_double ? find_distinct<double>(*a) : find_distinct<float>(*a); }

// The order of keys, which differ and are spread evenly from the smallest to the largest, as hashes are: all are put
// into buckets of a few, and those are sorted.
DKAN_EXPORT void dkan_order_keys(const char* keys, int64_t stride, int64_t count, int64_t* order) {
    if (count == 0) return;
    const auto key = [&](int64_t row) {
        uint64_t found;
        memcpy(&found, keys + row * stride, sizeof found);
        return found;
    };
    uint64_t low = key(0), high = low;
    for (int64_t row = 1; row < count; ++row) {
        low = std::min(low, key(row));
        high = std::max(high, key(row));
    }
    int shift = 0;
    while ((high - low) >> shift >= static_cast<uint64_t>(count)) ++shift;
    std::vector<int64_t> starts(((high - low) >> shift) + 2);
    for (int64_t row = 0; row < count; ++row) ++starts[((key(row) - low) >> shift) + 1];
    for (size_t bucket = 1; bucket < starts.size(); ++bucket) starts[bucket] += starts[bucket - 1];
    struct Row {
        uint64_t key;
        int64_t row;
    };
    std::vector<Row> rows(count);
    std::vector<int64_t> ends(starts);
    for (int64_t row = 0; row < count; ++row) rows[ends[(key(row) - low) >> shift]++] = {key(row), row};
    for (size_t bucket = 0; bucket + 1 < starts.size(); ++bucket) {
        if (ends[bucket] - starts[bucket] > 1) {
            std::sort(rows.begin() + starts[bucket], rows.begin() + ends[bucket],
                      [](const Row& a, const Row& b) { return a.key < b.key; });
        }
    }
    for (int64_t row = 0; row < count; ++row) order[row] = rows[row].row;
}
