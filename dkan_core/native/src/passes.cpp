// The passes over memory that PyTorch cannot fuse. Compiled once for each kind of processor, with DKAN_VARIANT as the
// name of the table of functions that comes out.

#include "arguments.h"
#include "vectors.h"

#include <cstdlib>

namespace {

using namespace dkan;

// Inputs whose basis is computed at a time: with 32 centers 8 KiB.
constexpr int64_t BASIS_STRETCH = 64;
// The hash of dropout.py.
constexpr uint32_t FIRST_FACTOR = 0x7FEB352D, SECOND_FACTOR = 0x846CA68B, SHIFT = 15;
// Vectors of a sum that are in registers at a time.
constexpr int64_t TABLE_VECTORS = 4;

// How the centers are known to the compiler: any number of them; the usual 8, so that loops over them unroll; these on
// an even grid as far apart as the Gaussians are wide.
constexpr int ANY = 0, EIGHT = 8, EVEN_GRID = -8;

template <int FIXED>
inline int64_t centers_of(int64_t num_centers) {
    return FIXED == ANY ? num_centers : 8;
}

template <int FIXED>
inline void offsets(const Basis& a, int64_t start, int64_t count, float* u) {
    const int64_t G = centers_of<FIXED>(a.num_centers);
    for (int64_t n = 0; n < count; ++n) {
        for (int64_t g = 0; g < G; ++g) u[n * G + g] = (a.x[start + n] - a.centers[g]) * a.inverse_width;
    }
}

template <int FIXED>
void basis_forward(const Basis& a, int64_t start, int64_t stop) {
    const int64_t G = centers_of<FIXED>(a.num_centers);
    float u[BASIS_STRETCH * MAX_CENTERS + LANES] = {};
    for (int64_t first = start; first < stop; first += BASIS_STRETCH) {
        const int64_t count = stop - first < BASIS_STRETCH ? stop - first : BASIS_STRETCH;
        offsets<FIXED>(a, first, count, u);
        float* out = a.out + first * G;
        for (int64_t j = 0; j < count * G; j += LANES) {
            const Float offset = load(u + j);
            store_some(out + j, exp(-(offset * offset)), count * G - j);
        }
    }
}

template <int FIXED>
void basis_backward(const Basis& a, int64_t start, int64_t stop) {
    const int64_t G = centers_of<FIXED>(a.num_centers);
    float u[BASIS_STRETCH * MAX_CENTERS + LANES] = {};
    for (int64_t first = start; first < stop; first += BASIS_STRETCH) {
        const int64_t count = stop - first < BASIS_STRETCH ? stop - first : BASIS_STRETCH;
        offsets<FIXED>(a, first, count, u);
        const float* gradient = a.gradient + first * G;
        for (int64_t j = 0; j < count * G; j += LANES) {
            const Float offset = load(u + j);
            store(u + j, load_some(gradient + j, count * G - j) * exp(-(offset * offset)) * offset);
        }
        for (int64_t n = 0; n < count; ++n) {
            float slope = 0;
            for (int64_t g = 0; g < G; ++g) slope += u[n * G + g];
            a.out[first + n] = slope * (-2 * a.inverse_width);
        }
    }
}

// Fills the Gaussians of some inputs.
template <int FIXED>
inline void gaussians(const Hidden& a, Float y, Float* basis) {
    const int64_t G = centers_of<FIXED>(a.num_centers);
    for (int64_t g = 0; g < G; ++g) {
        const Float u = (y - a.centers[g]) * a.inverse_width;
        basis[g] = exp(-(u * u));
    }
}

// Eight on an even grid as far apart as they are wide, by two exponentials instead of eight. With u the distance from
// the middle of the grid, that around k is e^(-u^2) (e^u)^(2k) e^(-k^2), for k = -3.5 to 3.5. From the middle outwards
// each follows from the one before, and no factor leaves the range of float32 while |u| <= 9. Farther out all are below
// 1e-13, and taken for 0.
template <>
inline void gaussians<EVEN_GRID>(const Hidden& a, Float y, Float* basis) {
    const Float limit = splat(9.0f);
    const Float u = (y - 0.5f * (a.centers[0] + a.centers[7])) * a.inverse_width;
    const Float below = u > limit ? limit : u;
    const Float clamped = below < -limit ? -limit : below;
    const Float middle = exp_in_range(-(clamped * clamped));
    const Float near = u != clamped ? Float{} : middle;
    const Float step = exp_in_range(clamped), back = 1.0f / step;
    basis[4] = near * step * 0.778800783f;  // e^(-1/4)
    basis[3] = near * back * 0.778800783f;
    const Float steps = step * step, backs = back * back;
    basis[5] = basis[4] * (steps * 0.135335283f);  // e^(-2)
    basis[2] = basis[3] * (backs * 0.135335283f);
    basis[6] = basis[5] * (steps * 0.0183156389f);  // e^(-4)
    basis[1] = basis[2] * (backs * 0.0183156389f);
    basis[7] = basis[6] * (steps * 0.00247875218f);  // e^(-6)
    basis[0] = basis[1] * (backs * 0.00247875218f);
}

// One row of one network on its way: what dropout leaves, that normalized, and what the gradient is multiplied by.
struct Row {
    float* x;
    float* normed;
    float* factor;
    float* grad_normed;
    float* grad_base;
    float deviation;  // 1 / standard deviation

    explicit Row(int64_t width) {
        const int64_t bytes = (5 * width * 4 + 63) / 64 * 64;
        x = static_cast<float*>(aligned_alloc(64, bytes));
        normed = x + width;
        factor = normed + width;
        grad_normed = factor + width;
        grad_base = grad_normed + width;
    }
    Row(const Row&) = delete;
    Row& operator=(const Row&) = delete;
    ~Row() { free(x); }
};

inline Float kept_factors(const Hidden& a, int64_t network, int64_t row, int64_t i) {
    const int32_t* unit_keys = a.unit_keys + network * a.inputs + i;
    Bits bits;
    const Int keys = load_some(unit_keys, a.inputs - i) ^ a.row_keys[row];
    memcpy(&bits, &keys, sizeof bits);
    bits *= FIRST_FACTOR;
    bits ^= bits >> SHIFT;
    bits *= SECOND_FACTOR;
    Int hashed;
    memcpy(&hashed, &bits, sizeof hashed);
    return hashed >= a.threshold ? splat(a.kept_factor) : Float{};
}

// Reads a row, drops and normalizes; the padding of `normed` is 0.
void begin_row(const Hidden& a, int64_t network, int64_t b, Row& row) {
    const int64_t I = a.inputs, P = padded(I);
    const float* x = a.x + network * a.network_stride + b * a.row_stride;
    Float total = {};
    for (int64_t i = 0; i < P; i += LANES) {
        Float value = i < I ? load_some(x + i, I - i) : Float{};
        if (a.row_keys) {
            const Float factor = i < I ? kept_factors(a, network, b, i) : Float{};
            value *= factor;
            store(row.factor + i, factor);
        }
        store(row.x + i, value);
        total += value;
    }
    const float mean = sum(total) / I;
    Float squares = {};
    for (int64_t i = 0; i < I; i += LANES) {
        const Float centered = load(row.x + i) - mean;
        store(row.normed + i, centered);
        if (i + LANES <= I) squares += centered * centered;
    }
    float variance = sum(squares);
    for (int64_t i = I / LANES * LANES; i < I; ++i) variance += row.normed[i] * row.normed[i];
    for (int64_t i = I; i < P; ++i) row.normed[i] = 0;
    row.deviation = 1 / __builtin_sqrtf(variance / I + a.epsilon);
    for (int64_t i = 0; i < P; i += LANES) store(row.normed + i, load(row.normed + i) * row.deviation);
}

template <int FIXED>
void hidden_forward(const Hidden& a, const Packed& w, int64_t network, int64_t start, int64_t stop) {
    const int64_t G = centers_of<FIXED>(a.num_centers), O = a.outputs, P = padded(a.inputs);
    Row row(P);
    for (int64_t b = start; b < stop; ++b) {
        begin_row(a, network, b, row);
        Float sums[MAX_OUTPUTS] = {};
        for (int64_t i = 0; i < P; i += LANES) {
            const Float x = load(row.x + i);
            const Float silu = x * sigmoid(x);
            const Float y = load(row.normed + i) * load(w.norm_weight + i) + load(w.norm_bias + i);
            Float basis[FIXED == ANY ? MAX_CENTERS : 8];
            gaussians<FIXED>(a, y, basis);
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

// Adds to the gradients of the weights, and computes that of the inputs.
template <int FIXED>
void hidden_backward(
    const Hidden& a, const Packed& w, const Packed& grads, int64_t network, int64_t start, int64_t stop) {
    const int64_t G = centers_of<FIXED>(a.num_centers), O = a.outputs, I = a.inputs, P = padded(I);
    Row row(P);
    for (int64_t b = start; b < stop; ++b) {
        begin_row(a, network, b, row);
        const float* grad_out = a.grad_out + (network * a.rows + b) * O;
        for (int64_t o = 0; o < O; ++o) grads.bias[o] += grad_out[o];
        Float total = {}, projection = {};
        for (int64_t i = 0; i < P; i += LANES) {
            const Float x = load(row.x + i), normed = load(row.normed + i);
            const Float gate = sigmoid(x), silu = x * gate, norm_weight = load(w.norm_weight + i);
            const Float y = normed * norm_weight + load(w.norm_bias + i);
            Float basis[FIXED == ANY ? MAX_CENTERS : 8], grad_basis[FIXED == ANY ? MAX_CENTERS : 8];
            gaussians<FIXED>(a, y, basis);
            for (int64_t g = 0; g < G; ++g) grad_basis[g] = Float{};
            Float grad_silu = {};
            for (int64_t o = 0; o < O; ++o) {
                const Float grad = splat(grad_out[o]);
                float* grad_base = grads.base + o * P + i;
                grad_silu += grad * load(w.base + o * P + i);
                store(grad_base, load(grad_base) + grad * silu);
                for (int64_t g = 0; g < G; ++g) {
                    const int64_t place = (o * G + g) * P + i;
                    grad_basis[g] += grad * load(w.spline + place);
                    store(grads.spline + place, load(grads.spline + place) + grad * basis[g]);
                }
            }
            Float grad_y = {};
            for (int64_t g = 0; g < G; ++g) {
                const Float u = (y - a.centers[g]) * a.inverse_width;
                grad_y += grad_basis[g] * basis[g] * u;
            }
            grad_y *= -2 * a.inverse_width;
            store(grads.norm_bias + i, load(grads.norm_bias + i) + grad_y);
            store(grads.norm_weight + i, load(grads.norm_weight + i) + grad_y * normed);
            const Float grad_normed = grad_y * norm_weight;
            total += grad_normed;
            projection += grad_normed * normed;
            store(row.grad_normed + i, grad_normed);
            store(row.grad_base + i, grad_silu * gate * (1.0f + x * (1.0f - gate)));
        }
        const float mean = sum(total) / I, share = sum(projection) / I;
        float* grad_x = a.grad_x + network * a.network_stride + b * a.row_stride;
        for (int64_t i = 0; i < I; i += LANES) {
            const Float through_norm = load(row.grad_normed + i) - mean - load(row.normed + i) * share;
            Float grad = through_norm * row.deviation + load(row.grad_base + i);
            if (a.row_keys) grad *= load(row.factor + i);
            store_some(grad_x + i, grad, I - i);
        }
    }
}

// Rows of the result.
void table_forward(const TableSum& a, int64_t start, int64_t stop) {
    for (int64_t b = start; b < stop; ++b) {
        const int32_t* places = a.places + b * a.per_row;
        float* out = a.out + b * a.width;
        int64_t h = 0;
        for (; h + TABLE_VECTORS * LANES <= a.width; h += TABLE_VECTORS * LANES) {
            Float sums[TABLE_VECTORS] = {};
            for (int64_t t = 0; t < a.per_row; ++t) {
                const float* entry = a.table + places[t] * a.width + h;
                for (int64_t v = 0; v < TABLE_VECTORS; ++v) sums[v] += load(entry + v * LANES);
            }
            for (int64_t v = 0; v < TABLE_VECTORS; ++v) store(out + h + v * LANES, sums[v]);
        }
        for (; h < a.width; ++h) {
            float total = 0;
            for (int64_t t = 0; t < a.per_row; ++t) total += a.table[places[t] * a.width + h];
            out[h] = total;
        }
    }
}

// Columns of the table, in which every row of the gradient is added in turn.
void table_backward(const TableSum& a, int64_t start, int64_t stop) {
    for (int64_t v = 0; v < a.table_rows; ++v) memset(a.out + v * a.width + start, 0, 4 * (stop - start));
    for (int64_t b = 0; b < a.rows; ++b) {
        const int32_t* places = a.places + b * a.per_row;
        const float* gradient = a.gradient + b * a.width;
        int64_t h = start;
        for (; h + TABLE_VECTORS * LANES <= stop; h += TABLE_VECTORS * LANES) {
            Float parts[TABLE_VECTORS];
            for (int64_t v = 0; v < TABLE_VECTORS; ++v) parts[v] = load(gradient + h + v * LANES);
            for (int64_t t = 0; t < a.per_row; ++t) {
                float* entry = a.out + places[t] * a.width + h;
                for (int64_t v = 0; v < TABLE_VECTORS; ++v) {
                    store(entry + v * LANES, load(entry + v * LANES) + parts[v]);
                }
            }
        }
        for (; h < stop; ++h) {
            for (int64_t t = 0; t < a.per_row; ++t) a.out[places[t] * a.width + h] += gradient[h];
        }
    }
}

bool is_even_grid(const Hidden& a) {
    if (a.num_centers != 8) return false;
    for (int64_t g = 1; g < 8; ++g) {
        const float apart = (a.centers[g] - a.centers[g - 1]) * a.inverse_width - 1;
        if (!(apart < 1e-5f && apart > -1e-5f)) return false;
    }
    return true;
}

void choose_basis_forward(const Basis& a, int64_t start, int64_t stop) {
    (a.num_centers == 8 ? basis_forward<EIGHT> : basis_forward<ANY>)(a, start, stop);
}

void choose_basis_backward(const Basis& a, int64_t start, int64_t stop) {
    (a.num_centers == 8 ? basis_backward<EIGHT> : basis_backward<ANY>)(a, start, stop);
}

void choose_hidden_forward(const Hidden& a, const Packed& w, int64_t network, int64_t start, int64_t stop) {
    (is_even_grid(a) ? hidden_forward<EVEN_GRID> : hidden_forward<ANY>)(a, w, network, start, stop);
}

void choose_hidden_backward(
    const Hidden& a, const Packed& w, const Packed& grads, int64_t network, int64_t start, int64_t stop) {
    (is_even_grid(a) ? hidden_backward<EVEN_GRID> : hidden_backward<ANY>)(a, w, grads, network, start, stop);
}

}  // namespace

#define DKAN_TEXT(name) #name
#define DKAN_NAME(name) DKAN_TEXT(name)

extern const dkan::InputPasses DKAN_INPUT_PASSES;
float DKAN_ADAMW(const dkan::AdamW&);
void DKAN_ENCODE(const dkan::Encode&, int64_t first, int64_t last);

extern const dkan::Passes DKAN_VARIANT;
const dkan::Passes DKAN_VARIANT = {
    DKAN_NAME(DKAN_VARIANT),
    choose_basis_forward,
    choose_basis_backward,
    choose_hidden_forward,
    choose_hidden_backward,
    table_forward,
    table_backward,
    &DKAN_INPUT_PASSES,
    DKAN_ADAMW,
    DKAN_ENCODE,
};
