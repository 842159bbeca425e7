// The passes over memory that PyTorch cannot fuse. Compiled once for each kind of processor, with DKAN_VARIANT as the
// name of the table of functions that comes out.

#include "arguments.h"
#include "vectors.h"

namespace {

using namespace dkan;

// Inputs whose basis is computed at a time: with 32 centers 8 KiB.
constexpr int64_t BASIS_BLOCK = 64;
// Vectors of a sum that are in registers at a time.
constexpr int64_t TABLE_VECTORS = 4;

// How the centers are known to the compiler: any number of them, or the usual 8, so that loops over them unroll.
constexpr int ANY = 0, EIGHT = 8;

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
    float u[BASIS_BLOCK * MAX_CENTERS + LANES] = {};
    for (int64_t first = start; first < stop; first += BASIS_BLOCK) {
        const int64_t count = stop - first < BASIS_BLOCK ? stop - first : BASIS_BLOCK;
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
    float u[BASIS_BLOCK * MAX_CENTERS + LANES] = {};
    for (int64_t first = start; first < stop; first += BASIS_BLOCK) {
        const int64_t count = stop - first < BASIS_BLOCK ? stop - first : BASIS_BLOCK;
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

// Rows of the result.
void table_forward(const TableSum& a, int64_t start, int64_t stop) {
    for (int64_t b = start; b < stop; ++b) {
        const int32_t* indices = a.indices + b * a.per_row;
        float* out = a.out + b * a.width;
        int64_t h = 0;
        for (; h + TABLE_VECTORS * LANES <= a.width; h += TABLE_VECTORS * LANES) {
            Float sums[TABLE_VECTORS] = {};
            for (int64_t t = 0; t < a.per_row; ++t) {
                if (indices[t] == a.empty) continue;
                const float* entry = a.table + indices[t] * a.width + h;
                for (int64_t v = 0; v < TABLE_VECTORS; ++v) sums[v] += load(entry + v * LANES);
            }
            for (int64_t v = 0; v < TABLE_VECTORS; ++v) store(out + h + v * LANES, sums[v]);
        }
        for (; h < a.width; ++h) {
            float total = 0;
            for (int64_t t = 0; t < a.per_row; ++t) {
                if (indices[t] != a.empty) total += a.table[indices[t] * a.width + h];
            }
            out[h] = total;
        }
    }
}

// Columns of the table, in which every row of the gradient is added in turn.
void table_backward(const TableSum& a, int64_t start, int64_t stop) {
    for (int64_t v = 0; v < a.table_rows && !a.adds; ++v) memset(a.out + v * a.width + start, 0, 4 * (stop - start));
    for (int64_t b = 0; b < a.rows; ++b) {
        const int32_t* indices = a.indices + b * a.per_row;
        const float* gradient = a.gradient + b * a.width;
        int64_t h = start;
        for (; h + TABLE_VECTORS * LANES <= stop; h += TABLE_VECTORS * LANES) {
            Float parts[TABLE_VECTORS];
            for (int64_t v = 0; v < TABLE_VECTORS; ++v) parts[v] = load(gradient + h + v * LANES);
            for (int64_t t = 0; t < a.per_row; ++t) {
                if (indices[t] == a.empty) continue;
                float* entry = a.out + indices[t] * a.width + h;
                for (int64_t v = 0; v < TABLE_VECTORS; ++v) {
                    store(entry + v * LANES, load(entry + v * LANES) + parts[v]);
                }
            }
        }
        for (; h < stop; ++h) {
            for (int64_t t = 0; t < a.per_row; ++t) {
                if (indices[t] != a.empty) a.out[indices[t] * a.width + h] += gradient[h];
            }
        }
    }
}

void choose_basis_forward(const Basis& a, int64_t start, int64_t stop) {
    (a.num_centers == 8 ? basis_forward<EIGHT> : basis_forward<ANY>)(a, start, stop);
}

void choose_basis_backward(const Basis& a, int64_t start, int64_t stop) {
    (a.num_centers == 8 ? basis_backward<EIGHT> : basis_backward<ANY>)(a, start, stop);
}

}  // namespace

#define DKAN_TEXT(name) #name
#define DKAN_NAME(name) DKAN_TEXT(name)

extern const dkan::HiddenPasses DKAN_HIDDEN_PASSES;
extern const dkan::HiddenProducts DKAN_HIDDEN_PRODUCTS;
extern const dkan::InputPasses DKAN_INPUT_PASSES;
float DKAN_ADAMW(const dkan::AdamW&, int64_t start, int64_t stop);
void DKAN_ENCODE(const dkan::Column&, int64_t start, int64_t count);
void DKAN_SCATTER(const dkan::Scatter&, int64_t first, int64_t last, int64_t start, int64_t stop);
void DKAN_MIX_ROWS(uint64_t first, int64_t count, uint64_t increment, uint32_t* out);
void DKAN_LIKELIHOOD_SUMS(const dkan::Likelihood&);
void DKAN_ADD_CODES(const dkan::Likelihood&);

extern const dkan::Passes DKAN_VARIANT;
const dkan::Passes DKAN_VARIANT = {
    DKAN_NAME(DKAN_VARIANT),
    choose_basis_forward,
    choose_basis_backward,
    table_forward,
    table_backward,
    &DKAN_HIDDEN_PASSES,
    &DKAN_HIDDEN_PRODUCTS,
    &DKAN_INPUT_PASSES,
    DKAN_ADAMW,
    DKAN_ENCODE,
    DKAN_SCATTER,
    DKAN_MIX_ROWS,
    DKAN_LIKELIHOOD_SUMS,
    DKAN_ADD_CODES,
};
