// What the passes are given: raw pointers to contiguous arrays, and sizes. dkan_core/native/library.py has the same
// structures; the order of the fields is the contract between the two.
//
// N networks side by side, B rows, I inputs, O outputs, G centers, T indices of a row in a table, V rows of the table,
// H columns of the table.

#pragma once

#include <cstdint>

// A function that only prefetches: GCC takes one that it does not inline at once for a function without effects, and
// drops the calls.
#define DKAN_PREFETCH __attribute__((always_inline)) inline

namespace dkan {

// Gaussians on any grid: exp(-((x - center) * inverse_width)^2).
struct Basis {
    const float* x;        // [B]
    const float* gradient; // [B, G], for the backward pass alone
    const float* centers;  // [G]
    float* out;            // [B, G]; backward [B]
    float inverse_width;
    int64_t count;         // B
    int64_t num_centers;   // G
};

// Dropout, LayerNorm, basis and SiLU, and the products of both with weights.
struct Hidden {
    const float* x;            // [N, B, I], with strides; a row's inputs are contiguous
    const int32_t* row_keys;   // [B]; null: nothing is dropped
    const int32_t* unit_keys;  // [N, I]
    const float* norm_weight;  // [N, I]
    const float* norm_bias;    // [N, I]
    const float* spline;       // [N, O, I, G]
    const float* base;         // [N, O, I]
    const float* bias;         // [N, O]
    const float* centers;      // [G]
    const float* grad_out;     // [N, B, O], for the backward pass alone
    float* out;                // [N, B, O]
    float* grad_x;             // with the strides of x; the other gradients are added to
    float* grad_norm_weight;   // [N, I]
    float* grad_norm_bias;     // [N, I]
    float* grad_spline;        // [N, O, I, G]
    float* grad_base;          // [N, O, I]
    float* grad_bias;          // [N, O]
    int64_t network_stride;    // of x, in numbers
    int64_t row_stride;
    int64_t networks;
    int64_t rows;
    int64_t inputs;
    int64_t outputs;
    int64_t num_centers;
    int32_t threshold;         // cells whose hash is below are dropped
    float kept_factor;         // what the others grow by
    float inverse_width;
    float epsilon;             // of LayerNorm
};

// Binary cross-entropy of the last layer's outputs: its mean over networks, weighted over rows and labels.
struct Loss {
    const uint8_t* labels;       // [B, O], 255 where not measured
    const float* row_weights;    // [B]; null: all are 1
    const float* label_weights;  // [O]; null: all are 1
    const float* shift;          // [O], added to the outputs of all networks
    float* grad_shift;           // [O]
    double* out;                 // the loss
    float total;                 // sum of the weights of all that is measured, in a batch that these rows are a part of
    float pos_weight;            // of positives
};

// The sum of some rows of a table for each row of indices.
struct TableSum {
    const int32_t* indices;  // [B, T], each below V
    const float* table;      // [V, H]
    const float* gradient;   // [B, H], for the backward pass alone
    float* out;              // [B, H]; backward [V, H]
    int64_t rows;            // B
    int64_t per_row;         // T
    int64_t table_rows;      // V
    int64_t width;           // H
    int64_t empty;           // an index that counts for nothing; -1: none does
    int64_t adds;            // whether the backward pass adds to `out`, rather than filling it
};

// A first layer: basis and SiLU of its inputs, the products of both with its weights, and the sum of some rows of a
// table, of which codes say which. What an embedded column of few codes adds is computed once for each code.
struct InputLayer {
    const uint8_t* bytes;       // [B, F] normal scores as they are stored; null: `scores` has them, if there are any
    const float* byte_scores;   // [256]
    const float* scores;        // [B, F]
    const int32_t* codes;       // [B, C]
    const float* spline;        // [H, I, G]
    const float* base;          // [H, I]
    const float* bias;          // [H]
    const float* one_hot;       // [V, H]
    const float* centers;       // [G]
    const float* const* embeddings;  // of each embedded column, [codes, width]
    const int64_t* layout;      // see input_layer.h
    const float* shift;         // [B, H], added to the outputs, and may be `out` itself; null: nothing is
    const float* grad_out;      // [B, H], for the backward pass alone, which adds to all gradients
    float* out;                 // [B, H]
    float* grad_scores;         // [B, F]; null: not needed
    float* grad_spline;
    float* grad_base;
    float* grad_bias;
    float* grad_one_hot;
    float* const* grad_embeddings;
    int64_t rows;               // B
    int64_t features;           // F
    int64_t coded;              // C
    int64_t inputs;             // I
    int64_t outputs;            // H
    int64_t num_centers;        // G
    int64_t bf16_parts;         // how many numbers in bfloat16 may stand for one of a product of scores; 0: it is float32
    float inverse_width;
};

// Forward and backward pass of a model of these two layers. `hidden` and the gradients of `input` have no inputs of their
// own: those of the hidden layer are the outputs of the first one, in whose place their gradients stand afterwards.
struct TrainingStep {
    InputLayer input;
    Hidden hidden;
    Loss loss;
};

// One step of AdamW.
struct AdamW {
    const float* old_values;
    const float* old_exp_avg;
    const float* old_exp_avg_sq;
    float* new_values;
    float* new_exp_avg;
    float* new_exp_avg_sq;
    float* gradient;
    const int64_t* starts;   // of the ranges that decay, in order
    const int64_t* stops;
    const float* factors;    // what the parameters of a range are multiplied by
    int64_t ranges;
    int64_t count;
    int64_t clears;          // whether the gradient is 0 afterwards
    float beta1;
    float beta2;
    float one_minus_beta1;
    float one_minus_beta2;
    float root_scale;        // 1 / sqrt(1 - beta2^count)
    float epsilon;
    float step_size;         // lr / (1 - beta1^count)
    float scale;             // of the gradient
};

// A column of numbers, and where the code of a value changes: values below edge 0 have code 0 of `codes`, those from edge
// i on have code i + 1. What is null, NaN or infinite has code 0.
struct Column {
    const void* values;     // [B] of float, or of double
    const uint8_t* valid;   // a bitmap, 0 is null; no pointer: nothing is
    const void* edges;      // [E] rising, of the same type
    const uint8_t* codes;   // [E + 1]
    uint8_t* out;           // [B]
    int64_t valid_offset;   // bits of the bitmap before the first row's
    int64_t edge_count;     // E, at most 255
    int64_t is_double;
};

// Codes of columns, to be written as the rows of records.
struct Scatter {
    const uint8_t* codes;    // [I, stride]
    const int64_t* indices;  // [B], the record of each row
    uint8_t* out;            // the first code of record 0
    int64_t row_bytes;       // from record to record
    int64_t stride;          // at least B, rounded up to a multiple of 8
    int64_t rows;            // B
    int64_t count;           // I
};

// Rows of a logistic regression, and one of the terms that their log-odds are the sum of.
struct Likelihood {
    const uint16_t* codes;  // [B] the term's code in each row, below C
    double* log_odds;       // [B]
    const float* target;    // [B] 0 or 1
    const float* weight;    // [B]
    const double* table;    // [C] what is added to the log-odds of the rows of each code
    double* sums;           // [C, 2] zeros, which get the log-likelihood's gradient and curvature by what a code adds
    int64_t rows;           // B
    int64_t size;           // C
};

// Weights of one network in the order that the passes read them in: inputs last, padded with zeros to whole vectors.
struct Packed {
    float* spline;       // [O, G, P]
    float* base;         // [O, P]
    float* norm_weight;  // [P]
    float* norm_bias;    // [P]
    float* bias;         // [O]
};

// Those of a layer with many outputs, as right operands of products. The K terms of a row are the SiLU of its inputs,
// then one Gaussian after the other of all of them.
struct PackedProducts {
    float* by_term;      // [K, Q], outputs padded
    float* by_output;    // [O, K]; gradients have none
    float* norm_weight;  // [P]
    float* norm_bias;    // [P]
    float* bias;         // [Q]
};

// Outputs of a hidden layer whose sums are kept in registers and the nearest cache; of more, it is computed by products.
constexpr int64_t MAX_OUTPUTS = 16;
constexpr int64_t MAX_CENTERS = 32;
// Inputs are padded to a multiple of the longest vector that any variant has.
constexpr int64_t PADDING = 16;

// Columns of the right operand of a product that lie together.
constexpr int64_t PANEL = 64;

static inline int64_t padded(int64_t count) { return (count + PADDING - 1) / PADDING * PADDING; }

// K, and a few more: rows of terms that are a power of two apart would share the same lines of a cache.
static inline int64_t terms_of(const Hidden& a) { return (a.num_centers + 1) * padded(a.inputs) + PADDING; }

// The passes of a hidden layer, one set for each kind of processor.
struct HiddenPasses {
    void (*forward)(const Hidden&, const Packed&, int64_t network, int64_t start, int64_t stop);
    double (*backward)(const Hidden&, const Packed&, const Packed& gradients, const Loss*, int64_t network,
                       int64_t start, int64_t stop);
};

struct HiddenProducts {
    void (*forward)(const Hidden&, const PackedProducts&, int64_t network, int64_t start, int64_t stop);
    void (*backward)(const Hidden&, const PackedProducts&, const PackedProducts& gradients, int64_t network, int64_t start,
                     int64_t stop);
};

struct InputPasses;

// The passes, one set for each kind of processor. A task is a part that depends on no other and on sizes alone: what it
// computes is the same to the bit whatever the number of threads.
struct Passes {
    const char* name;
    void (*basis_forward)(const Basis&, int64_t start, int64_t stop);
    void (*basis_backward)(const Basis&, int64_t start, int64_t stop);
    void (*table_forward)(const TableSum&, int64_t start, int64_t stop);
    void (*table_backward)(const TableSum&, int64_t start, int64_t stop);
    const HiddenPasses* hidden_layer;
    const HiddenProducts* hidden_product;
    const InputPasses* input_layer;
    float (*adamw)(const AdamW&, int64_t start, int64_t stop);
    void (*encode)(const Column&, int64_t start, int64_t count);
    void (*scatter)(const Scatter&, int64_t first, int64_t last, int64_t start, int64_t stop);
    void (*mix_rows)(uint64_t first, int64_t count, uint64_t increment, uint32_t* out);
    void (*likelihood_sums)(const Likelihood&);
    void (*add_codes)(const Likelihood&);
};

}  // namespace dkan
