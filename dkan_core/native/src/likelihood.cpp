// What each code of a term says about the log-odds of its rows, for fits of one term after the other.

#include "arguments.h"
#include "vectors.h"

namespace {

// Rows whose derivatives are computed at a time, a multiple of LANES.
constexpr int64_t BLOCK = 512;
// With so few codes, consecutive rows often have the same one, whose sum would wait for itself: there are several sums.
constexpr int64_t FEW_CODES = 256, FEW_COPIES = 4;

// Gradient and curvature.
typedef double Two __attribute__((vector_size(16)));

// Those of LANES rows.
inline void some_derivatives(const double* log_odds, const float* target, const float* weight, float (*out)[2]) {
    float rounded[LANES];
    for (int64_t n = 0; n < LANES; ++n) rounded[n] = static_cast<float>(log_odds[n]);
    const Float probability = sigmoid(load(rounded)), counts = load(weight);
    const Float gradient = counts * (load(target) - probability);
    const Float curvature = counts * (probability * (1.0f - probability));
    for (int64_t n = 0; n < LANES; ++n) out[n][0] = gradient[n], out[n][1] = curvature[n];
}

// Fills whole vectors, the last one beyond `count`.
inline void derivatives(const dkan::Likelihood& a, int64_t first, int64_t count, float (*out)[2]) {
    const double* log_odds = a.log_odds + first;
    const float *target = a.target + first, *weight = a.weight + first;
    int64_t n = 0;
    for (; n + LANES <= count; n += LANES) some_derivatives(log_odds + n, target + n, weight + n, out + n);
    if (n == count) return;
    double last_log_odds[LANES] = {};
    float last_target[LANES] = {}, last_weight[LANES] = {};
    memcpy(last_log_odds, log_odds + n, 8 * (count - n));
    memcpy(last_target, target + n, 4 * (count - n));
    memcpy(last_weight, weight + n, 4 * (count - n));
    some_derivatives(last_log_odds, last_target, last_weight, out + n);
}

// Adds up what the rows of each code say, in the order of the rows: those of every COPIES-th row make one sum. How many
// there are is known to the compiler, as this loop takes a third of the time.
template <int64_t COPIES>
void add_up(const dkan::Likelihood& a, Two* sums) {
    float values[BLOCK][2];
    for (int64_t first = 0; first < a.rows; first += BLOCK) {
        const int64_t count = a.rows - first < BLOCK ? a.rows - first : BLOCK;
        derivatives(a, first, count, values);
        const uint16_t* codes = a.codes + first;
#pragma GCC unroll 4
        for (int64_t n = 0; n < count; ++n) sums[codes[n] * COPIES + n % COPIES] += Two{values[n][0], values[n][1]};
    }
}

}  // namespace

void DKAN_LIKELIHOOD_SUMS(const dkan::Likelihood& a) {
    if (a.size > FEW_CODES) return add_up<1>(a, reinterpret_cast<Two*>(a.sums));
    Two few[FEW_COPIES * FEW_CODES] = {};
    add_up<FEW_COPIES>(a, few);
    for (int64_t code = 0; code < a.size; ++code) {
        const Two* copies = few + code * FEW_COPIES;
        const Two total = (copies[0] + copies[1]) + (copies[2] + copies[3]);
        memcpy(a.sums + 2 * code, &total, sizeof total);
    }
}

void DKAN_ADD_CODES(const dkan::Likelihood& a) {
    for (int64_t n = 0; n < a.rows; ++n) a.log_odds[n] += a.table[a.codes[n]];
}
