// What one call of the first layer works with: where its inputs come from, and memory for what its passes make.
//
// What a column adds to the outputs is a function of its value alone, a stored byte or a code. It is computed once for
// each value that occurs among the rows: a table, from which each row takes one entry. Scores that are no bytes go
// through the basis row by row.
//
// The layout is a row of numbers:
//   scores that go through the basis: how many, and the feature of each
//   embedded columns: how many, and of each its feature, codes, width, first input, and the first row of its own one-hot
//     weights in their table, which its entries hold as well, or -1
//   other groups of one-hot weights: how many, and of each its first row, its rows, how many codes count (0: all), its
//     columns, and the feature and stride of each of these

#pragma once

#include "arguments.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace dkan {

// A column whose values have a table.
struct InputColumn {
    int64_t first;      // input
    int64_t width;      // inputs
    int64_t feature;    // stored bytes or codes
    int64_t codes;      // 256 of bytes
    int64_t embedding;  // among the embedded columns; -1: these are bytes, whose scores are not learned
    int64_t one_hot;    // first row of its own one-hot weights, or -1
    std::vector<int32_t> values;  // that occur, in the order of their rows
    int64_t row;       // of the block's tables, the first of its own
    int64_t bases;     // where the basis of its values begins
    int64_t weights;   // where its part of the weights begins
};

// Codes whose joint value has a row of one-hot weights.
struct Group {
    int64_t first, size, cap;
    std::vector<std::pair<int64_t, int64_t>> columns;
};

// What a row takes one number per output from: the table of a group or a column; or a table of sums, for the joint values
// of several of these that occur among the rows.
struct Entry {
    std::vector<int64_t> parts;     // groups, and columns after all of these
    std::vector<int32_t> samples;   // a row of each joint value; empty: there is one part
    std::vector<int32_t> joint;     // [B] the joint value of each row
    int64_t row;                    // of the block's tables, the first of its own
    std::vector<int32_t> order;     // [B] rows by their values, chunk by chunk; none where the part is a group
    std::vector<int32_t> ends;      // [chunks, values] where in this order the rows of each value end

    bool is_joint() const { return !samples.empty(); }
};

// Rows that are put in the order of their values together: a panel of their gradients stays in the second-level cache.
constexpr int64_t SORTED_ROWS = 2048;

// Memory that a thread uses again in its next call: the system would hand out zeroed pages each time.
class Floats {
  public:
    Floats() = default;
    Floats(const Floats&) = delete;
    Floats& operator=(const Floats&) = delete;
    Floats(Floats&&);
    ~Floats();
    // Without a value: most is written before it is read.
    float* make(int64_t count, bool zero = false);

  private:
    float* memory_ = nullptr;
    int64_t bytes_ = 0;
};

// Entries whose tables are made together.
struct Block {
    int64_t first, stop;           // entries
    std::vector<int64_t> columns;  // that these have
    int64_t rows, bases, weights;  // of their tables; numbers of their bases and of their part of the weights
    float* value_bases;            // [values, width * (G + 1)] of each column; null: not made yet
    Floats memory;                 // where these are
};

struct Rows {
    int64_t first, count;
};

// Some of the scores that have no tables. The bases and weights of so many fit into the second-level cache; with 8 centers
// they are whole tiles of a product.
struct Scores {
    int64_t first, count;
    bool adjacent;  // their features stand side by side
};
constexpr int64_t SCORES_AT_A_TIME = 64;

struct InputCall {
    const InputLayer& a;
    int64_t panels, terms;  // G + 1
    std::vector<InputColumn> columns;
    std::vector<Group> groups;
    std::vector<Entry> entries;
    std::vector<Block> blocks;
    std::vector<int32_t> indices;  // [groups + columns, B]: rows of their tables, from the first of the group or column on
    int64_t scores = 0;     // that have no tables, and of each its input and its feature
    std::vector<int64_t> score_inputs, score_features;
    float* byte_bases = nullptr;  // of each byte, and SiLU: [256, G + 1]
    std::vector<uint16_t> byte_parts;   // both parts of the same in bfloat16: [2, 256, G + 1]
    Floats byte_memory;           // where these are
    float* weights;         // of its columns: [panels, width * (G + 1), PANEL] each
    float* tables;          // [panels, rows, PANEL], forward values and backward gradients
    float* score_weights;   // of the scores, some of them after others: [panels, scores * (G + 1), PANEL]
    float* score_bases;     // of some scores of some rows: [rows, scores * (G + 1)]
    float* score_sums;      // of the gradient of their weights: [panels, PANEL, scores * (G + 1)]
    float* gradients;       // of the outputs: [panels, rows, PANEL]; in bfloat16 [panels, parts, PANEL, pairs of rows]

    const int32_t* indices_of(int64_t part) const { return indices.data() + part * a.rows; }
    // Null: the part is a group.
    const InputColumn* column_of(int64_t part) const {
        const int64_t index = part - static_cast<int64_t>(groups.size());
        return index < 0 ? nullptr : &columns[index];
    }
};

// Sizes of a panel, with room for the last words of both parts of numbers in bfloat16.
static inline int64_t score_weights_size(const InputCall& call) { return (call.scores * call.terms + 2 * PADDING) * PANEL; }
static inline int64_t gradient_size(const InputCall& call) { return (padded(call.a.rows) + 4 * PADDING) * PANEL; }

static inline Scores scores_from(const InputCall& call, int64_t first) {
    const int64_t* features = call.score_features.data() + first;
    Scores some{first, std::min(SCORES_AT_A_TIME, call.scores - first), true};
    for (int64_t i = 1; i < some.count; ++i) some.adjacent &= features[i] == features[0] + i;
    return some;
}

// One entry for each group and column.
void list_entries(InputCall& call);

// Entries whose values occur in few combinations become one.
void join_entries(InputCall& call);

// Values that occur of an entry with a table of its own; 0 of a group, whose table is a part of the weights.
static inline int64_t values_of(const InputCall& call, const Entry& entry) {
    if (entry.is_joint()) return entry.samples.size();
    const InputColumn* column = call.column_of(entry.parts[0]);
    return column ? column->values.size() : 0;
}

// Puts the rows of an entry in the order of their values, for the way back.
void sort_rows(const InputCall& call, Entry& entry);

// One set for each kind of processor.
struct InputPasses {
    // Whether products in bfloat16, in parts too, are faster than tables of the values of bytes.
    bool multiplies_bytes;
    void (*value_bases)(const InputCall&, const Block&, const InputColumn&);
    void (*value_tables)(const InputCall&, const Block&, int64_t panel, int64_t start, int64_t stop);
    void (*score_weights)(const InputCall&, int64_t panel);
    void (*forward)(const InputCall&, const Block&, int64_t panel, int64_t start, int64_t stop);
    void (*scores)(const InputCall&, int64_t start, int64_t stop);
    void (*pack_gradients)(const InputCall&, int64_t start, int64_t stop);
    void (*score_bases)(const InputCall&, const Scores&, const Rows& chunk, int64_t start, int64_t stop);
    void (*score_weight_gradient)(const InputCall&, const Scores&, const Rows& chunk, int64_t panel);
    void (*score_gradient)(const InputCall&, const float* turned, int64_t start, int64_t stop);
    void (*turn_weights)(const InputCall&, int64_t first, int64_t width, float* to);
    void (*bias_gradient)(const InputCall&, int64_t panel);
    void (*scatter)(const InputCall&, const Block&, int64_t panel, int64_t start, int64_t stop);
    void (*embedding_gradient)(const InputCall&, const Block&, const InputColumn&, int64_t start, int64_t stop);
};

// Room for the last vector of a row that is no whole number of vectors.
static inline int64_t padded_terms(int64_t width, int64_t terms) { return padded(width * terms); }

}  // namespace dkan
