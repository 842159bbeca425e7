// One step of AdamW in a single pass over memory. Compiled without fused multiply-adds: every operation rounds as
// numpy's do, so that the result is that of dkan_core/training/state/adamw.py to the bit.

#include "arguments.h"

#include <cmath>

namespace {

// Parameters between two looks at the sum of squares, each in a lane of its own.
constexpr int64_t LANES = 16;

void update(const dkan::AdamW& a, int64_t start, int64_t stop, float factor, float* squares) {
    for (int64_t first = start; first < stop; first += LANES) {
        const int64_t count = stop - first < LANES ? stop - first : LANES;
        for (int64_t lane = 0; lane < count; ++lane) {
            const int64_t p = first + lane;
            const float gradient = a.gradient[p];
            const float exp_avg = a.old_exp_avg[p] * a.beta1 + gradient * a.one_minus_beta1;
            const float exp_avg_sq = a.old_exp_avg_sq[p] * a.beta2 + gradient * gradient * a.one_minus_beta2;
            const float root = std::sqrt(exp_avg_sq) * a.root_scale + a.epsilon;
            const float value = a.old_values[p] * factor - exp_avg / root * a.step_size;
            a.new_exp_avg[p] = exp_avg;
            a.new_exp_avg_sq[p] = exp_avg_sq;
            a.new_values[p] = value;
            squares[lane] += value * value;
        }
    }
}

}  // namespace

// Returns the sum of the squares of the parameters: no finite number where one of them is none.
float DKAN_ADAMW(const dkan::AdamW& a) {
    float squares[LANES] = {};
    int64_t done = 0;
    for (int64_t stretch = 0; stretch < a.stretches; ++stretch) {
        update(a, done, a.starts[stretch], 1, squares);
        update(a, a.starts[stretch], a.stops[stretch], a.factors[stretch], squares);
        done = a.stops[stretch];
    }
    update(a, done, a.count, 1, squares);
    float total = 0;
    for (float each : squares) total += each;
    return total;
}
