// What one call of the first layer works with: where its inputs come from, and memory for what its passes make.
//
// The layout is a row of numbers:
//   scores that go through the basis: how many, and the feature of each
//   embedded columns: how many, and of each its feature, codes, width, first input, 1 if it is computed by codes,
//     and the first row of its own one-hot weights in their table where codes bring both together, else -1
//   groups of one-hot weights: how many, and of each its first row, its rows, how many codes count (0: all), its
//     columns, and the feature and stride of each of these
//
// Memory for gradients and products is cut into panels of columns, each as wide as PANEL.

#pragma once

#include "arguments.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace dkan {

// Inputs that follow one another in the weights: the scores, or the numbers of an embedding.
struct Stretch {
    int64_t first;    // input
    int64_t width;    // inputs
    int64_t feature;  // its codes
    int64_t codes;    // 0: these are the scores
    int64_t place;    // among the embedded columns
    int64_t one_hot;  // first row of its own one-hot weights, or -1
    int64_t column;   // of a row's basis; by codes: first row of the tables
    int64_t bases;    // by codes: where the basis of its codes begins
    int64_t turned;   // where its weights begin with outputs as rows; -1: its inputs need no gradient
    int64_t grad_x;   // by rows: first column of these gradients
};

struct Rows {
    int64_t first, count;
};

// Codes whose joint value has a row of a table.
struct Group {
    int64_t first, size, cap, table;  // table: row of the tables by codes, or -1 for the one-hot weights
    std::vector<std::pair<int64_t, int64_t>> columns;
};

class Floats {
  public:
    // Without a value: most is written before it is read.
    float* make(int64_t count, bool zero = false) {
        memory_.reset(static_cast<float*>(std::aligned_alloc(64, (count * 4 + 127) / 64 * 64)));
        if (zero) memset(memory_.get(), 0, count * 4);
        return memory_.get();
    }

  private:
    struct Free {
        void operator()(float* memory) const { std::free(memory); }
    };
    std::unique_ptr<float, Free> memory_;
};

struct InputCall {
    const InputLayer& a;
    std::vector<Stretch> dense, coded;  // by rows, and by codes
    std::vector<Group> groups;
    int64_t panels, terms, row_terms = 0, table_rows = 0, all_bases = 0, all_turned = 0, grad_x_width = 0;
    std::vector<int32_t> places;  // [B, T]
    float* byte_bases; // [256, G + 1]
    float* weights;    // [panels, I * (G + 1), PANEL]
    float* bases;      // of all codes: [codes, width * (G + 1)] each
    float* tables;     // [panels, codes, PANEL]
    float* turned;     // backward: weights of embeddings as [panels of width * (G + 1), H, PANEL] each
    float* row_bases;  // of some rows: [rows, row_terms]
    float* gradients;  // of these rows: [panels, rows, PANEL]
    float* grad_weights;
    float* grad_tables;
    float* grad_x;     // of inputs by rows: [B, grad_x_width]
};

static inline int64_t padded_to_panel(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

// One set for each kind of processor.
struct InputPasses {
    void (*pack_weights)(const InputCall&, int64_t panel);
    void (*byte_bases)(const InputCall&);
    void (*code_bases)(const InputCall&, const Stretch&);
    void (*code_tables)(const InputCall&, const Stretch&, int64_t panel);
    void (*forward)(const InputCall&, int64_t start, int64_t stop);
    void (*row_bases)(const InputCall&, const Rows& chunk, int64_t start, int64_t stop);
    void (*weight_gradient)(const InputCall&, const Rows& chunk, int64_t panel);
    void (*scatter)(const InputCall&, int64_t panel);
    void (*code_gradient)(const InputCall&, const Stretch&, int64_t panel);
    void (*turn_weights)(const InputCall&, const Stretch&);
    void (*code_x_gradient)(const InputCall&, const Stretch&);
    void (*row_x_gradient)(const InputCall&, const Stretch&, int64_t start, int64_t stop);
    void (*unpack_gradient)(const InputCall&, int64_t panel);
};

}  // namespace dkan
