// The passes of a first layer. Compiled once for each kind of processor, with DKAN_INPUT_PASSES as the name of the table
// of functions that comes out.

#include "input_bases.h"
#include "products.h"

namespace {

constexpr int64_t AHEAD = 2;  // rows
constexpr int64_t ROWS_AT_A_TIME = 48;  // a multiple of TILE_ROWS; their sums stay in the nearest cache

int64_t columns_of(const InputCall& call, int64_t panel) {
    const int64_t left = call.a.outputs - panel * PANEL;
    return left < PANEL ? left : PANEL;
}

// Weights of the basis and then the SiLU of some inputs, with outputs as columns.
void pack_weights(const InputCall& call, int64_t first, int64_t width, int64_t panel, float* to) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, I = a.inputs, columns = columns_of(call, panel);
    if (columns < PANEL) memset(to, 0, width * call.terms * PANEL * 4);
    for (int64_t start = 0; start < width * G; start += LANES) {
        const int64_t stop = start + LANES < width * G ? start + LANES : width * G;
        for (int64_t j = 0; j < columns; ++j) {
            const float* from = a.spline + ((panel * PANEL + j) * I + first) * G;
            for (int64_t k = start; k < stop; ++k) to[k * PANEL + j] = from[k];
        }
    }
    to += width * G * PANEL;
    for (int64_t j = 0; j < columns; ++j) {
        const float* from = a.base + (panel * PANEL + j) * I + first;
        for (int64_t i = 0; i < width; ++i) to[i * PANEL + j] = from[i];
    }
}

// The same with outputs as rows.
void turn_weights(const InputCall& call, int64_t first, int64_t width, float* to) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, step = padded_terms(width, call.terms);
    for (int64_t h = 0; h < a.outputs; ++h, to += step) {
        memcpy(to, a.spline + (h * a.inputs + first) * G, width * G * 4);
        memcpy(to + width * G, a.base + h * a.inputs + first, width * 4);
    }
}

// Adds to the gradient of a panel's weights of some inputs: that of the outputs, `step` apart for each of `count` terms,
// times their bases, `bases_step` apart.
void add_weight_gradient(
    const InputCall& call,
    int64_t first,
    int64_t width,
    int64_t panel,
    const float* gradients,
    int64_t count,
    const float* bases,
    int64_t bases_step,
    float* scratch) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, terms = width * call.terms, step = padded_terms(width, call.terms);
    const int64_t columns = columns_of(call, panel);
    memset(scratch, 0, columns * step * 4);
    add_product(gradients, 1, PANEL, bases, bases_step, columns, count, terms, scratch, step);
    for (int64_t j = 0; j < columns; ++j) {
        const float* from = scratch + j * step;
        const int64_t h = panel * PANEL + j;
        float* spline = a.grad_spline + (h * a.inputs + first) * G;
        float* base = a.grad_base + h * a.inputs + first;
        for (int64_t k = 0; k < width * G; ++k) spline[k] += from[k];
        for (int64_t i = 0; i < width; ++i) base[i] += from[width * G + i];
    }
}

void value_bases(const InputCall& call, const Block& block, const InputColumn& column) {
    float* to = block.value_bases + column.bases;
    for (const int32_t value : column.values) {
        if (column.place < 0 && call.byte_bases) {
            memcpy(to, call.byte_bases + value * call.terms, call.terms * 4);
        } else {
            fill_bases(call.a, inputs_of(call.a, column, value), column.width, to);
        }
        to += column.width * call.terms;
    }
}

float* table_of(const InputCall& call, const Block& block, const InputColumn& column, int64_t panel) {
    return call.tables + (panel * block.rows + column.row) * PANEL;
}

// What each value adds to the outputs: its basis and SiLU times the weights, and its own one-hot weights.
void value_tables(const InputCall& call, const Block& block, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel);
    for (int64_t index = block.first; index < block.stop; ++index) {
        const InputColumn& column = call.columns[index];
        const int64_t depth = column.width * call.terms, values = column.values.size();
        float* weights = call.weights + call.panels * column.weights + panel * depth * PANEL;
        pack_weights(call, column.first, column.width, panel, weights);
        float* table = table_of(call, block, column, panel);
        memset(table, 0, values * PANEL * 4);
        for (int64_t place = 0; column.one_hot >= 0 && place < values; ++place) {
            const int64_t row = column.one_hot + column.values[place];
            memcpy(table + place * PANEL, a.one_hot + row * a.outputs + panel * PANEL, columns * 4);
        }
        add_product(block.value_bases + column.bases, depth, 1, weights, PANEL, values, depth, columns, table, PANEL);
    }
}

void score_weights(const InputCall& call, int64_t panel) {
    pack_weights(call, 0, call.scores, panel, call.score_weights + panel * call.scores * call.terms * PANEL);
}

// First row of the table of a group or column, and how far apart its rows are.
struct Entries {
    float* first;
    int64_t step;
};

// Those that a block takes: the first block has the groups, too. Returns how many groups and columns come before.
int64_t entries_of(
    const InputCall& call, const Block& block, int64_t panel, float* one_hot, std::vector<Entries>& entries) {
    entries.clear();
    for (const Group& group : call.groups) {
        if (block.first) break;
        entries.push_back({one_hot + group.first * call.a.outputs + panel * PANEL, call.a.outputs});
    }
    for (int64_t index = block.first; index < block.stop; ++index) {
        entries.push_back({table_of(call, block, call.columns[index], panel), PANEL});
    }
    return block.first ? call.groups.size() + block.first : 0;
}

// Adds a row's entries to where its sums begin.
void gather(
    const std::vector<Entries>& entries, const int32_t* places, int64_t step, int64_t columns, const float* from, float* to) {
    const int64_t T = entries.size();
    if (columns == PANEL) {
        constexpr int64_t VECTORS = PANEL / LANES;
        Float sums[VECTORS];
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) sums[v] = load(from + v * LANES);
        for (int64_t t = 0; t < T; ++t) {
            const float* entry = entries[t].first + places[t * step] * entries[t].step;
#pragma GCC unroll 16
            for (int64_t v = 0; v < VECTORS; ++v) sums[v] += load(entry + v * LANES);
        }
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) store(to + v * LANES, sums[v]);
        return;
    }
    for (int64_t h = 0; h < columns; h += LANES) {
        Float total = load_some(from + h, columns - h);
        for (int64_t t = 0; t < T; ++t) {
            total += load_some(entries[t].first + places[t * step] * entries[t].step + h, columns - h);
        }
        store_some(to + h, total, columns - h);
    }
}

// Fetches a row's entries of groups, whose tables no cache holds, while those of the row before are added.
template <int WRITE>
inline void prefetch_groups(const std::vector<Entries>& entries, int64_t groups, const int32_t* places, int64_t step) {
    constexpr int64_t LINE = 16;
    for (int64_t t = 0; t < groups; ++t) {
        const float* entry = entries[t].first + places[t * step] * entries[t].step;
        for (int64_t h = 0; h < PANEL; h += LINE) __builtin_prefetch(entry + h, WRITE, 3);
    }
}

void add_row(const float* from, int64_t columns, float* to) {
    for (int64_t h = 0; h < columns; h += LANES) {
        store_some(to + h, load_some(to + h, columns - h) + load_some(from + h, columns - h), columns - h);
    }
}

// Adds a row's gradient to the entries that it has taken.
void add_to_entries(
    const std::vector<Entries>& entries, const int32_t* places, int64_t step, const float* gradient, int64_t columns) {
    const int64_t T = entries.size();
    if (columns < PANEL) {
        for (int64_t t = 0; t < T; ++t) {
            add_row(gradient, columns, entries[t].first + places[t * step] * entries[t].step);
        }
        return;
    }
    constexpr int64_t VECTORS = PANEL / LANES;
    Float parts[VECTORS];
#pragma GCC unroll 16
    for (int64_t v = 0; v < VECTORS; ++v) parts[v] = load(gradient + v * LANES);
    for (int64_t t = 0; t < T; ++t) {
        float* entry = entries[t].first + places[t * step] * entries[t].step;
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) store(entry + v * LANES, load(entry + v * LANES) + parts[v]);
    }
}

// Adds what a block says to a panel of the outputs of some rows; the first block begins them.
void forward(const InputCall& call, const Block& block, int64_t panel, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel), score_terms = block.first ? 0 : call.scores * call.terms;
    std::vector<Entries> entries;
    const int32_t* places = call.places.data() + a.rows * entries_of(call, block, panel, const_cast<float*>(a.one_hot), entries);
    const float* shift = block.first || !a.shift ? nullptr : a.shift + panel * PANEL;
    float* out = a.out + panel * PANEL;
    const float* begun = block.first ? out : a.bias + panel * PANEL;
    const int64_t begun_step = block.first ? a.outputs : 0;
    const int64_t groups = block.first || columns < PANEL ? 0 : call.groups.size();
    if (!score_terms && !shift) {
        for (int64_t b = start; b < stop; ++b) {
            if (b + AHEAD < stop) prefetch_groups<0>(entries, groups, places + b + AHEAD, a.rows);
            gather(entries, places + b, a.rows, columns, begun + b * begun_step, out + b * a.outputs);
        }
        return;
    }
    Floats bases_memory, sums_memory;
    float* bases = bases_memory.make(ROWS_AT_A_TIME * score_terms);
    float* sums = sums_memory.make(ROWS_AT_A_TIME * PANEL, true);
    for (int64_t first = start; first < stop; first += ROWS_AT_A_TIME) {
        const int64_t rows = stop - first < ROWS_AT_A_TIME ? stop - first : ROWS_AT_A_TIME;
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t b = first + r;
            gather(entries, places + b, a.rows, columns, begun + b * begun_step, sums + r * PANEL);
            if (shift) add_row(shift + b * a.outputs, columns, sums + r * PANEL);
            if (score_terms) fill_scores(call, b, bases + r * score_terms);
        }
        if (score_terms) {
            const float* weights = call.score_weights + panel * score_terms * PANEL;
            add_product(bases, score_terms, 1, weights, PANEL, rows, score_terms, columns, sums, PANEL);
        }
        for (int64_t r = 0; r < rows; ++r) memcpy(out + (first + r) * a.outputs, sums + r * PANEL, columns * 4);
    }
}

// Of rows of a chunk the basis and SiLU of scores, and the gradient in panels.
void score_bases(const InputCall& call, const Rows& chunk, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    for (int64_t b = start; b < stop; ++b) {
        const int64_t row = b - chunk.first;
        fill_scores(call, b, call.score_bases + row * call.scores * call.terms);
        for (int64_t panel = 0; panel < call.panels; ++panel) {
            float* to = call.gradients + (panel * chunk.count + row) * PANEL;
            memcpy(to, a.grad_out + b * a.outputs + panel * PANEL, columns_of(call, panel) * 4);
        }
    }
}

// Adds to the gradient of the weights of scores what the rows of a chunk say, in their order.
void score_weight_gradient(const InputCall& call, const Rows& chunk, int64_t panel) {
    Floats memory;
    float* scratch = memory.make(PANEL * padded_terms(call.scores, call.terms));
    const float* gradients = call.gradients + panel * chunk.count * PANEL;
    const int64_t step = call.scores * call.terms;
    add_weight_gradient(call, 0, call.scores, panel, gradients, chunk.count, call.score_bases, step, scratch);
}

// Adds the gradient of every row to the bias and to the entries that the row has taken, and from these to the weights
// and to one-hot weights.
void scatter(const InputCall& call, const Block& block, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel);
    std::vector<Entries> entries;
    const int32_t* places = call.places.data() + a.rows * entries_of(call, block, panel, a.grad_one_hot, entries);
    float* bias = a.grad_bias + panel * PANEL;
    const int64_t groups = block.first || columns < PANEL ? 0 : call.groups.size();
    for (int64_t b = 0; b < a.rows; ++b) {
        const float* gradient = a.grad_out + b * a.outputs + panel * PANEL;
        if (b + AHEAD < a.rows) prefetch_groups<1>(entries, groups, places + b + AHEAD, a.rows);
        if (!block.first) add_row(gradient, columns, bias);
        add_to_entries(entries, places + b, a.rows, gradient, columns);
    }
    Floats memory;
    float* scratch = memory.make(PANEL * padded_terms(call.widest, call.terms));
    for (int64_t index = block.first; index < block.stop; ++index) {
        const InputColumn& column = call.columns[index];
        const int64_t values = column.values.size();
        const float* table = table_of(call, block, column, panel);
        for (int64_t place = 0; column.one_hot >= 0 && place < values; ++place) {
            float* own = a.grad_one_hot + (column.one_hot + column.values[place]) * a.outputs + panel * PANEL;
            for (int64_t h = 0; h < columns; ++h) own[h] += table[place * PANEL + h];
        }
        add_weight_gradient(call, column.first, column.width, panel, table, values, block.value_bases + column.bases,
                            column.width * call.terms, scratch);
    }
}

// Adds the gradient of a column's embeddings.
void embedding_gradient(const InputCall& call, const Block& block, const InputColumn& column) {
    const InputLayer& a = call.a;
    const int64_t terms = column.width * call.terms, step = padded_terms(column.width, call.terms);
    const int64_t values = column.values.size();
    Floats turned_memory, memory;
    float* turned = turned_memory.make(a.outputs * step);
    float* grad_bases = memory.make(values * step, true);
    turn_weights(call, column.first, column.width, turned);
    for (int64_t panel = 0; panel < call.panels; ++panel) {
        const float* table = table_of(call, block, column, panel);
        add_product(table, PANEL, 1, turned + panel * PANEL * step, step, values, columns_of(call, panel), terms,
                    grad_bases, step);
    }
    for (int64_t place = 0; place < values; ++place) {
        const int64_t value = column.values[place];
        add_x_gradient(a, inputs_of(a, column, value), column.width, block.value_bases + column.bases + place * terms,
                       grad_bases + place * step, a.grad_embeddings[column.place] + value * column.width);
    }
}

// Adds the gradient of the scores of some rows.
void score_gradient(const InputCall& call, const float* turned, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t D = call.scores, step = padded_terms(D, call.terms);
    Floats memory;
    float* grad_bases = memory.make(ROWS_AT_A_TIME * step + step + 2 * padded(D));
    float* bases = grad_bases + ROWS_AT_A_TIME * step;
    float* x = bases + step;
    float* grad_x = x + padded(D);
    for (int64_t first = start; first < stop; first += ROWS_AT_A_TIME) {
        const int64_t rows = stop - first < ROWS_AT_A_TIME ? stop - first : ROWS_AT_A_TIME;
        memset(grad_bases, 0, rows * step * 4);
        add_product(a.grad_out + first * a.outputs, a.outputs, 1, turned, step, rows, a.outputs, D * call.terms,
                    grad_bases, step);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t row = (first + r) * a.features;
            fill_scores(call, first + r, bases);
            for (int64_t i = 0; i < D; ++i) x[i] = a.scores[row + a.layout[1 + i]];
            memset(grad_x, 0, D * 4);
            add_x_gradient(a, x, D, bases, grad_bases + r * step, grad_x);
            for (int64_t i = 0; i < D; ++i) a.grad_scores[row + a.layout[1 + i]] += grad_x[i];
        }
    }
}

}  // namespace

extern const dkan::InputPasses DKAN_INPUT_PASSES;
const dkan::InputPasses DKAN_INPUT_PASSES = {
    value_bases,           value_tables,   score_weights, forward, score_bases,
    score_weight_gradient, score_gradient, turn_weights,  scatter, embedding_gradient,
};
