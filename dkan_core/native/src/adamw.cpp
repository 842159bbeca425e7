// One step of AdamW in a single pass over memory. Compiled without fused multiply-adds: every operation rounds as
// numpy's do, so that the result is that of dkan_core/training/state/adamw.py to the bit.

#include "arguments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace {

// Parameters that are updated together, each in a lane of its own.
constexpr int64_t LANES = 16;
// Parameters between those that are updated and those that are fetched into the cache. Measured on the state of a run of
// 2.3 million, which no cache holds: 64 to 128 take 15% off a step, 256 nothing.
constexpr int64_t AHEAD = 96;

// By itself, a processor stops fetching at the end of each page.
DKAN_PREFETCH void prefetch(const dkan::AdamW& a, int64_t first) {
    for (const float* each : {a.old_values, a.old_exp_avg, a.old_exp_avg_sq}) __builtin_prefetch(each + first);
    for (float* each : {a.gradient, a.new_values, a.new_exp_avg, a.new_exp_avg_sq}) __builtin_prefetch(each + first, 1);
}

// Most gradients of tables are 0 already: memory that is only read need not be written back.
template <typename Count>
inline void clear_some(float* gradient, Count count) {
    uint32_t bits[LANES] = {}, any = 0;
    memcpy(bits, gradient, 4 * count);
    for (uint32_t each : bits) any |= each;
    if (any) memset(gradient, 0, 4 * count);
}

// Reads all before it writes any, so that old and new may be the same and the compiler need not ask.
template <typename Count>
inline void update_some(const dkan::AdamW& a, int64_t first, Count count, float factor, float* squares) {
    float value[LANES], exp_avg[LANES], exp_avg_sq[LANES];
    for (int64_t lane = 0; lane < count; ++lane) {
        const float gradient = a.gradient[first + lane] * a.scale;
        exp_avg[lane] = a.old_exp_avg[first + lane] * a.beta1 + gradient * a.one_minus_beta1;
        exp_avg_sq[lane] = a.old_exp_avg_sq[first + lane] * a.beta2 + gradient * gradient * a.one_minus_beta2;
        value[lane] = a.old_values[first + lane] * factor;
    }
    for (int64_t lane = 0; lane < count; ++lane) {
        const float root = std::sqrt(exp_avg_sq[lane]) * a.root_scale + a.epsilon;
        value[lane] -= exp_avg[lane] / root * a.step_size;
        squares[lane] += value[lane] * value[lane];
    }
    if (a.clears) clear_some(a.gradient + first, count);
    memcpy(a.new_values + first, value, 4 * count);
    memcpy(a.new_exp_avg + first, exp_avg, 4 * count);
    memcpy(a.new_exp_avg_sq + first, exp_avg_sq, 4 * count);
}

void update(const dkan::AdamW& a, int64_t start, int64_t stop, float factor, float* all_squares) {
    float squares[LANES];
    memcpy(squares, all_squares, sizeof squares);
    int64_t first = start;
    for (; first + LANES <= stop; first += LANES) {
        prefetch(a, first + AHEAD);
        update_some(a, first, std::integral_constant<int64_t, LANES>(), factor, squares);
    }
    if (first < stop) update_some(a, first, stop - first, factor, squares);
    memcpy(all_squares, squares, sizeof squares);
}

}  // namespace

// Updates some of the parameters; returns the sum of their squares: no finite number where one of them is none.
float DKAN_ADAMW(const dkan::AdamW& a, int64_t start, int64_t stop) {
    float squares[LANES] = {};
    int64_t done = start;
    for (int64_t range = 0; range < a.ranges; ++range) {
        const int64_t first = std::clamp(a.starts[range], done, stop), last = std::clamp(a.stops[range], done, stop);
        update(a, done, first, 1, squares);
        update(a, first, last, a.factors[range], squares);
        done = last;
    }
    update(a, done, stop, 1, squares);
    float total = 0;
    for (float each : squares) total += each;
    return total;
}
