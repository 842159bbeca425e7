// The passes of a hidden layer with many outputs: matrix products of some rows at a time, whose basis is in a cache near.
// Compiled once for each kind of processor, with DKAN_HIDDEN_PRODUCTS as the name of the table of functions that comes out.

#include "arguments.h"
#include "gaussians.h"
#include "hidden_rows.h"
#include "products.h"

#include <algorithm>
#include <vector>

namespace {

using namespace dkan;

// Rows of a product: a multiple of those of a tile. The gradients of the weights are read and written once for them.
constexpr int64_t PRODUCT_ROWS = 48;

struct Row {
    float *x, *normed, *factor, *silu_slope, *grad_normed, *grad_base;  // [P]
    float* terms;                                                       // [K] SiLU and basis of the inputs
    float deviation;
};

// Rows that go through the layer together.
class Rows {
  public:
    explicit Rows(const Hidden& a) : width_(padded(a.inputs)), terms_(terms_of(a)), memory_(PRODUCT_ROWS * size() + PADDING) {
        float* next = memory_.data();
        terms = next;
        next += PRODUCT_ROWS * terms_;
        for (Row& row : rows_) {
            row.terms = terms + (&row - rows_) * terms_;
            for (float** part : {&row.x, &row.normed, &row.factor, &row.silu_slope, &row.grad_normed, &row.grad_base}) {
                *part = next;
                next += width_;
            }
        }
    }

    Row& operator[](int64_t row) { return rows_[row]; }

    float* terms;  // [PRODUCT_ROWS, K]

  private:
    int64_t size() const { return terms_ + 6 * width_; }

    int64_t width_, terms_;
    std::vector<float> memory_;
    Row rows_[PRODUCT_ROWS];
};

template <int FIXED>
void begin(const Hidden& a, const PackedProducts& w, int64_t network, int64_t b, Row& row) {
    const int64_t G = centers_of<FIXED>(a.num_centers), P = padded(a.inputs);
    begin_row(a, network, b, row);
    for (int64_t i = 0; i < P; i += LANES) {
        const Float x = load(row.x + i), gate = sigmoid(x);
        store(row.terms + i, x * gate);
        store(row.silu_slope + i, gate * (1.0f + x * (1.0f - gate)));
        const Float y = load(row.normed + i) * load(w.norm_weight + i) + load(w.norm_bias + i);
        Float basis[FIXED == ANY ? MAX_CENTERS : 8];
        gaussians<FIXED>(grid_of(a), y, basis);
        for (int64_t g = 0; g < G; ++g) store(row.terms + (1 + g) * P + i, basis[g]);
    }
}

template <int FIXED>
void product_forward(const Hidden& a, const PackedProducts& w, int64_t network, int64_t start, int64_t stop) {
    const int64_t O = a.outputs, Q = padded(O), K = terms_of(a);
    Rows rows(a);
    std::vector<float> out(PRODUCT_ROWS * Q);
    for (int64_t first = start; first < stop; first += PRODUCT_ROWS) {
        const int64_t count = std::min(PRODUCT_ROWS, stop - first);
        for (int64_t r = 0; r < count; ++r) {
            begin<FIXED>(a, w, network, first + r, rows[r]);
            std::copy_n(w.bias, Q, out.data() + r * Q);
        }
        add_product(rows.terms, K, 1, w.by_term, Q, count, K, O, out.data(), Q);
        for (int64_t r = 0; r < count; ++r) std::copy_n(out.data() + r * Q, O, a.out + (network * a.rows + first + r) * O);
    }
}

// From the gradient of a row's terms to that of its inputs.
template <int FIXED>
void go_back(const Hidden& a, const PackedProducts& w, const PackedProducts& grads, int64_t network, int64_t b,
             const float* grad_terms, Row& row) {
    const int64_t G = centers_of<FIXED>(a.num_centers), P = padded(a.inputs);
    Float total = {}, projection = {};
    for (int64_t i = 0; i < P; i += LANES) {
        const Float normed = load(row.normed + i), norm_weight = load(w.norm_weight + i);
        const Float y = normed * norm_weight + load(w.norm_bias + i);
        Float grad_y = {};
        for (int64_t g = 0; g < G; ++g) {
            const int64_t index = (1 + g) * P + i;
            grad_y += load(grad_terms + index) * load(row.terms + index) * ((y - a.centers[g]) * a.inverse_width);
        }
        grad_y *= -2 * a.inverse_width;
        const Float grad_normed = grad_y * norm_weight;
        store(grads.norm_bias + i, load(grads.norm_bias + i) + grad_y);
        store(grads.norm_weight + i, load(grads.norm_weight + i) + grad_y * normed);
        total += grad_normed;
        projection += grad_normed * normed;
        store(row.grad_normed + i, grad_normed);
        store(row.grad_base + i, load(grad_terms + i) * load(row.silu_slope + i));
    }
    finish_row(a, network, b, total, projection, row);
}

template <int FIXED>
void product_backward(const Hidden& a, const PackedProducts& w, const PackedProducts& grads, int64_t network, int64_t start,
                      int64_t stop) {
    const int64_t O = a.outputs, Q = padded(O), K = terms_of(a);
    Rows rows(a);
    std::vector<float> grad_out(PRODUCT_ROWS * Q), grad_terms(PRODUCT_ROWS * K);
    for (int64_t first = start; first < stop; first += PRODUCT_ROWS) {
        const int64_t count = std::min(PRODUCT_ROWS, stop - first);
        for (int64_t r = 0; r < count; ++r) {
            begin<FIXED>(a, w, network, first + r, rows[r]);
            const float* from = a.grad_out + (network * a.rows + first + r) * O;
            std::copy_n(from, O, grad_out.data() + r * Q);
            for (int64_t o = 0; o < O; ++o) grads.bias[o] += from[o];
        }
        add_product(rows.terms, 1, K, grad_out.data(), Q, K, count, O, grads.by_term, Q);
        std::fill_n(grad_terms.data(), count * K, 0.0f);
        add_product(grad_out.data(), Q, 1, w.by_output, K, count, O, K, grad_terms.data(), K);
        for (int64_t r = 0; r < count; ++r) {
            go_back<FIXED>(a, w, grads, network, first + r, grad_terms.data() + r * K, rows[r]);
        }
    }
}

void choose_forward(const Hidden& a, const PackedProducts& w, int64_t network, int64_t start, int64_t stop) {
    (is_even(grid_of(a)) ? product_forward<EVEN_GRID> : product_forward<ANY>)(a, w, network, start, stop);
}

void choose_backward(const Hidden& a, const PackedProducts& w, const PackedProducts& grads, int64_t network, int64_t start,
                     int64_t stop) {
    (is_even(grid_of(a)) ? product_backward<EVEN_GRID> : product_backward<ANY>)(a, w, grads, network, start, stop);
}

}  // namespace

extern const dkan::HiddenProducts DKAN_HIDDEN_PRODUCTS;
const dkan::HiddenProducts DKAN_HIDDEN_PRODUCTS = {choose_forward, choose_backward};
