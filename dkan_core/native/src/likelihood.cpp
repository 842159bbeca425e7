// What each code of a term says about the log-odds of its rows, for fits of one term after the other.

#include "arguments.h"
#include "vectors.h"

namespace {

// Rows whose derivatives are computed at a time.
constexpr int64_t BLOCK = 512;
// With so few codes, consecutive rows often have the same one, whose sum would wait for itself: there are several sums.
constexpr int64_t FEW_CODES = 256, COPIES = 4;

// Gradient and curvature.
typedef double Two __attribute__((vector_size(16)));

void derivatives(const dkan::Likelihood& a, int64_t first, int64_t count, float (*out)[2]) {
    float log_odds[BLOCK + LANES] = {}, target[BLOCK + LANES] = {}, weight[BLOCK + LANES] = {};
    float gradient[BLOCK + LANES], curvature[BLOCK + LANES];
    for (int64_t n = 0; n < count; ++n) log_odds[n] = static_cast<float>(a.log_odds[first + n]);
    memcpy(target, a.target + first, 4 * count);
    memcpy(weight, a.weight + first, 4 * count);
    for (int64_t n = 0; n < count; n += LANES) {
        const Float probability = sigmoid(load(log_odds + n)), counts = load(weight + n);
        store(gradient + n, counts * (load(target + n) - probability));
        store(curvature + n, counts * (probability * (1.0f - probability)));
    }
    for (int64_t n = 0; n < count; ++n) out[n][0] = gradient[n], out[n][1] = curvature[n];
}

}  // namespace

void DKAN_LIKELIHOOD_SUMS(const dkan::Likelihood& a) {
    const int64_t copies = a.size <= FEW_CODES ? COPIES : 1;
    Two few[COPIES * FEW_CODES] = {};
    Two* sums = copies > 1 ? few : reinterpret_cast<Two*>(a.sums);
    float values[BLOCK][2];
    for (int64_t first = 0; first < a.rows; first += BLOCK) {
        const int64_t count = a.rows - first < BLOCK ? a.rows - first : BLOCK;
        derivatives(a, first, count, values);
        const uint16_t* codes = a.codes + first;
        for (int64_t n = 0; n < count; ++n) {
            sums[codes[n] * copies + (n & (copies - 1))] += Two{values[n][0], values[n][1]};
        }
    }
    for (int64_t code = 0; code < a.size && copies > 1; ++code) {
        const Two total = (few[code * COPIES] + few[code * COPIES + 1]) + (few[code * COPIES + 2] + few[code * COPIES + 3]);
        memcpy(a.sums + 2 * code, &total, sizeof total);
    }
}

void DKAN_ADD_CODES(const dkan::Likelihood& a) {
    for (int64_t n = 0; n < a.rows; ++n) a.log_odds[n] += a.table[a.codes[n]];
}
