// Sorts of what a preparation reads: the distinct values of a column, and the order of the keys of rows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>
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
        // Without a jump, which the signs of numbers would make hard to foresee.
        return bits ^ ((Bits(0) - (bits >> (8 * sizeof(Bits) - 1))) | SIGN);
    }

    static Number value(Bits key) {
        const Bits bits = key & SIGN ? key & ~SIGN : ~key;
        Number value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
};

// Finite numbers as keys, sorted digit by digit, the lowest first. It is kept for the next column of a thread, as memory
// that is new costs as much as a pass.
template <typename Number>
class SortedKeys {
   public:
    using Bits = typename Ordered<Number>::Bits;

    // Returns the keys of all numbers that are finite, rising; there are `count` of them.
    const Bits* sort(const Number* values, int64_t rows) {
        keys.resize(rows);
        other.resize(rows);
        std::fill(std::begin(counts), std::end(counts), 0);
        Bits* to = keys.data();
        for (int64_t row = 0; row < rows; ++row) {
            if (!std::isfinite(values[row])) continue;
            const Bits key = *to++ = Ordered<Number>::key(values[row]);
            for (int pass = 0; pass < PASSES; ++pass) ++counts[pass * DIGITS + digit(key, pass)];
        }
        count = to - keys.data();
        for (int pass = 0; pass < PASSES; ++pass) sort_by_digit(pass);
        return keys.data();
    }

    int64_t count = 0;

   private:
    static constexpr int PASSES = (8 * sizeof(Bits) + DIGIT_BITS - 1) / DIGIT_BITS;

    static int64_t digit(Bits key, int pass) { return (key >> (pass * DIGIT_BITS)) % DIGITS; }

    void sort_by_digit(int pass) {
        int64_t* next = counts + pass * DIGITS;
        // A digit that is the same in all.
        if (std::count(next, next + DIGITS, count)) return;
        for (int64_t digit = 0, sum = 0; digit < DIGITS; ++digit) sum += std::exchange(next[digit], sum);
        const Bits* from = keys.data();
        Bits* to = other.data();
        for (int64_t row = 0; row < count; ++row) to[next[digit(from[row], pass)]++] = from[row];
        keys.swap(other);
    }

    std::vector<Bits> keys, other;
    int64_t counts[PASSES * DIGITS];
};

template <typename Number>
int64_t find_distinct(Distinct& a) {
    static thread_local const auto kept = std::make_unique<SortedKeys<Number>>();
    SortedKeys<Number>& sorted = *kept;
    const auto* keys = sorted.sort(static_cast<const Number*>(a.values), a.rows);
    const int64_t count = a.finite = sorted.count;
    Number* distinct = static_cast<Number*>(a.distinct);
    int64_t found = 0, before = 0;
    a.most = 0;
    for (int64_t row = 0; row < count; ++row) {
        // Written in any case, and kept where the next one differs.
        distinct[found] = Ordered<Number>::value(keys[row]);
        a.up_to[found] = row + 1;
        if (row + 1 < count && keys[row + 1] == keys[row]) continue;
        a.most = std::max(a.most, row + 1 - before);
        before = row + 1;
        ++found;
    }
    return found;
}

}  // namespace

// Returns how many distinct values there are. No value is -0.0, which equals 0.0.
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
