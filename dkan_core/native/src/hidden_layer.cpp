// The passes of a hidden layer with few outputs. Compiled once for each kind of processor, with DKAN_HIDDEN_PASSES as the
// name of the table of functions that comes out.

#include "arguments.h"
#include "gaussians.h"
#include "hidden_rows.h"

#include <cmath>
#include <cstdlib>

namespace {

using namespace dkan;

// Rows whose part of the gradients of the weights is added at a time: these are read and written once for all of them.
constexpr int ROWS_AT_A_TIME = 4;
// Label of prepared rows that was not measured.
constexpr uint8_t NOT_MEASURED = 255;

// One row of one network on its way: what dropout leaves, that normalized, what its way back needs, and the gradient.
struct Row {
    float* x;            // [P]
    float* normed;       // [P]
    float* factor;       // [P] of dropout
    float* silu;         // [P]
    float* silu_slope;   // [P]
    float* basis;        // [P / LANES, G, LANES]
    float* slopes;       // [O, P] of the sums of the basis, by what it is the basis of
    float* grad_normed;  // [P]
    float* grad_base;    // [P]
    float deviation;     // 1 / standard deviation
    float grad_out[MAX_OUTPUTS];

    Row(const Hidden& a, int64_t basis_centers) {
        const int64_t width = padded(a.inputs);
        const int64_t bytes = ((7 + basis_centers + a.outputs) * width * 4 + 63) / 64 * 64;
        x = static_cast<float*>(aligned_alloc(64, bytes));
        normed = x + width;
        factor = normed + width;
        silu = factor + width;
        silu_slope = silu + width;
        grad_normed = silu_slope + width;
        grad_base = grad_normed + width;
        basis = grad_base + width;
        slopes = basis + basis_centers * width;
    }
    Row(const Row&) = delete;
    Row& operator=(const Row&) = delete;
    ~Row() { free(x); }
};

template <int FIXED>
void hidden_forward(const Hidden& a, const Packed& w, int64_t network, int64_t start, int64_t stop) {
    const int64_t G = centers_of<FIXED>(a.num_centers), O = a.outputs, P = padded(a.inputs);
    Row row(a, 0);
    for (int64_t b = start; b < stop; ++b) {
        begin_row(a, network, b, row);
        Float sums[MAX_OUTPUTS] = {};
        for (int64_t i = 0; i < P; i += LANES) {
            const Float x = load(row.x + i);
            const Float silu = x * sigmoid(x);
            const Float y = load(row.normed + i) * load(w.norm_weight + i) + load(w.norm_bias + i);
            Float basis[FIXED == ANY ? MAX_CENTERS : 8];
            gaussians<FIXED>(grid_of(a), y, basis);
            for (int64_t o = 0; o < O; ++o) {
                Float part = silu * load(w.base + o * P + i);
                const float* spline = w.spline + o * G * P + i;
                for (int64_t g = 0; g < G; ++g) part += basis[g] * load(spline + g * P);
                sums[o] += part;
            }
        }
        float* out = a.out + (network * a.rows + b) * O;
        for (int64_t o = 0; o < O; ++o) out[o] = sum(sums[o]) + w.bias[o];
    }
}

// The way of a row to the outputs, where it also goes back: keeps what that needs.
template <int FIXED>
void forward_and_keep(const Hidden& a, const Packed& w, int64_t network, int64_t b, Row& row, float* outputs) {
    const int64_t G = centers_of<FIXED>(a.num_centers), O = a.outputs, P = padded(a.inputs);
    begin_row(a, network, b, row);
    Float sums[MAX_OUTPUTS] = {};
    for (int64_t i = 0; i < P; i += LANES) {
        const Float x = load(row.x + i), gate = sigmoid(x), silu = x * gate;
        store(row.silu + i, silu);
        store(row.silu_slope + i, gate * (1.0f + x * (1.0f - gate)));
        const Float y = load(row.normed + i) * load(w.norm_weight + i) + load(w.norm_bias + i);
        Float basis[FIXED == ANY ? MAX_CENTERS : 8], sloped[FIXED == ANY ? MAX_CENTERS : 8];
        gaussians<FIXED>(grid_of(a), y, basis);
        for (int64_t g = 0; g < G; ++g) {
            store(row.basis + i * G + g * LANES, basis[g]);
            sloped[g] = basis[g] * ((y - a.centers[g]) * a.inverse_width);
        }
        for (int64_t o = 0; o < O; ++o) {
            Float part = silu * load(w.base + o * P + i), slope = {};
            const float* spline = w.spline + o * G * P + i;
            for (int64_t g = 0; g < G; ++g) {
                const Float weight = load(spline + g * P);
                part += basis[g] * weight;
                slope += sloped[g] * weight;
            }
            sums[o] += part;
            store(row.slopes + o * P + i, slope);
        }
    }
    for (int64_t o = 0; o < O; ++o) outputs[o] = sum(sums[o]) + w.bias[o];
}

// Adds what some inputs of some rows say to the gradients of the weights.
template <int FIXED, int ROWS>
inline void add_weight_gradients(const Hidden& a, const Packed& grads, int64_t i, Row* const* rows) {
    const int64_t G = centers_of<FIXED>(a.num_centers), P = padded(a.inputs);
    for (int64_t o = 0; o < a.outputs; ++o) {
        Float grad[ROWS];
        for (int r = 0; r < ROWS; ++r) grad[r] = splat(rows[r]->grad_out[o]);
        float* to = grads.base + o * P + i;
        Float total = load(to);
        for (int r = 0; r < ROWS; ++r) total += grad[r] * load(rows[r]->silu + i);
        store(to, total);
        for (int64_t g = 0; g < G; ++g) {
            to = grads.spline + (o * G + g) * P + i;
            total = load(to);
            for (int r = 0; r < ROWS; ++r) total += grad[r] * load(rows[r]->basis + i * G + g * LANES);
            store(to, total);
        }
    }
}

// The way back of rows one after the other, from the gradients of their outputs to those of their inputs.
template <int FIXED, int ROWS>
void backward(const Hidden& a, const Packed& w, const Packed& grads, int64_t network, int64_t first, Row* const* rows) {
    const int64_t O = a.outputs, P = padded(a.inputs);
    Float totals[ROWS] = {}, projections[ROWS] = {};
    for (int r = 0; r < ROWS; ++r) {
        for (int64_t o = 0; o < O; ++o) grads.bias[o] += rows[r]->grad_out[o];
    }
    for (int64_t i = 0; i < P; i += LANES) {
        add_weight_gradients<FIXED, ROWS>(a, grads, i, rows);
        const Float norm_weight = load(w.norm_weight + i);
        Float grad_bias = load(grads.norm_bias + i), grad_weight = load(grads.norm_weight + i);
        for (int r = 0; r < ROWS; ++r) {
            const Row& row = *rows[r];
            Float grad_y = {}, grad_silu = {};
            for (int64_t o = 0; o < O; ++o) {
                const Float grad = splat(row.grad_out[o]);
                grad_y += grad * load(row.slopes + o * P + i);
                grad_silu += grad * load(w.base + o * P + i);
            }
            grad_y *= -2 * a.inverse_width;
            const Float normed = load(row.normed + i), grad_normed = grad_y * norm_weight;
            grad_bias += grad_y;
            grad_weight += grad_y * normed;
            totals[r] += grad_normed;
            projections[r] += grad_normed * normed;
            store(row.grad_normed + i, grad_normed);
            store(row.grad_base + i, grad_silu * load(row.silu_slope + i));
        }
        store(grads.norm_bias + i, grad_bias);
        store(grads.norm_weight + i, grad_weight);
    }
    for (int r = 0; r < ROWS; ++r) finish_row(a, network, first + r, totals[r], projections[r], *rows[r]);
}

// The binary cross-entropy of a row's outputs, and its gradient, as torch's `binary_cross_entropy_with_logits` has them.
double add_loss(const Loss& loss, int64_t networks, int64_t b, int64_t outputs, const float* logits, float* gradient) {
    double total = 0;
    for (int64_t o = 0; o < outputs; ++o) {
        const uint8_t stored = loss.labels[b * outputs + o];
        const bool measured = stored != NOT_MEASURED;
        const double label = measured ? stored : 0, x = logits[o] + loss.shift[o];
        double weight = measured / (loss.total * networks);
        if (loss.row_weights) weight *= loss.row_weights[b];
        if (loss.label_weights) weight *= loss.label_weights[o];
        const double positive = loss.pos_weight * label, negative = 1 - label;
        // e^-|x| leaves the range for no x.
        const double decayed = std::exp(-std::fabs(x)), softplus = (x < 0 ? -x : 0) + std::log1p(decayed);
        const double probability = (x < 0 ? decayed : 1) / (1 + decayed);
        total += weight * (negative * x + (positive + negative) * softplus);
        gradient[o] = static_cast<float>(weight * (probability * (positive + negative) - positive));
    }
    return total;
}

// Both ways of some rows, one network's. Their gradients of the outputs are given, or those of a loss.
template <int FIXED, int ROWS>
double both_ways(const Hidden& a, const Packed& w, const Packed& grads, const Loss* loss, int64_t network, int64_t first,
                 Row* const* rows) {
    double total = 0;
    for (int r = 0; r < ROWS; ++r) {
        float outputs[MAX_OUTPUTS];
        forward_and_keep<FIXED>(a, w, network, first + r, *rows[r], outputs);
        float* grad_out = rows[r]->grad_out;
        if (loss) {
            total += add_loss(*loss, a.networks, first + r, a.outputs, outputs, grad_out);
        } else {
            memcpy(grad_out, a.grad_out + (network * a.rows + first + r) * a.outputs, a.outputs * 4);
        }
    }
    backward<FIXED, ROWS>(a, w, grads, network, first, rows);
    return total;
}

// Adds to the gradients of the weights, computes that of the inputs, and returns what the rows add to the loss, if there
// is one.
template <int FIXED>
double hidden_backward(const Hidden& a, const Packed& w, const Packed& grads, const Loss* loss, int64_t network,
                       int64_t start, int64_t stop) {
    const int64_t G = centers_of<FIXED>(a.num_centers);
    Row first(a, G), second(a, G), third(a, G), fourth(a, G);
    Row* const rows[ROWS_AT_A_TIME] = {&first, &second, &third, &fourth};
    double total = 0;
    int64_t b = start;
    for (; b + ROWS_AT_A_TIME <= stop; b += ROWS_AT_A_TIME) {
        total += both_ways<FIXED, ROWS_AT_A_TIME>(a, w, grads, loss, network, b, rows);
    }
    for (; b < stop; ++b) total += both_ways<FIXED, 1>(a, w, grads, loss, network, b, rows);
    return total;
}

void choose_forward(const Hidden& a, const Packed& w, int64_t network, int64_t start, int64_t stop) {
    (is_even(grid_of(a)) ? hidden_forward<EVEN_GRID> : hidden_forward<ANY>)(a, w, network, start, stop);
}

double choose_backward(const Hidden& a, const Packed& w, const Packed& grads, const Loss* loss, int64_t network,
                       int64_t start, int64_t stop) {
    return (is_even(grid_of(a)) ? hidden_backward<EVEN_GRID> : hidden_backward<ANY>)(a, w, grads, loss, network, start, stop);
}

}  // namespace

extern const dkan::HiddenPasses DKAN_HIDDEN_PASSES;
const dkan::HiddenPasses DKAN_HIDDEN_PASSES = {choose_forward, choose_backward};
