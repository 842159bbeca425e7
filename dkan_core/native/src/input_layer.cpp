// The passes of a first layer. Compiled once for each kind of processor, with DKAN_INPUT_PASSES as the name of the table
// of functions that comes out.

#include "input_tables.h"

#include "input_scores.h"

namespace {

constexpr int64_t AHEAD = 2;  // rows
// Multiples of TILE_ROWS: rows whose bases of some scores stay in the second-level cache, with the weights of these; and
// fewer, where it is the bases of all scores.
constexpr int64_t ROWS_AT_A_TIME = 192, GRADIENT_ROWS = 48;

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
        if (column.embedding < 0 && call.byte_bases) {
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

float* joint_table(const InputCall& call, const Block& block, const Entry& entry, int64_t panel) {
    return call.tables + (panel * block.rows + entry.row) * PANEL;
}

// Calls `run` for each column of some entries.
template <typename Run>
void for_each_column(const InputCall& call, int64_t start, int64_t stop, const Run& run) {
    for (int64_t index = start; index < stop; ++index) {
        for (const int64_t part : call.entries[index].parts) {
            if (const InputColumn* column = call.column_of(part)) run(*column);
        }
    }
}

// The table of a group or column.
Table table_of_part(const InputCall& call, const Block& block, int64_t part, int64_t panel, float* one_hot) {
    const int32_t* indices = call.indices_of(part);
    if (const InputColumn* column = call.column_of(part)) {
        return {table_of(call, block, *column, panel), PANEL, indices, false};
    }
    const int64_t outputs = call.a.outputs;
    return {one_hot + call.groups[part].first * outputs + panel * PANEL, outputs, indices, true};
}

std::vector<Table> tables_of_parts(
    const InputCall& call, const Block& block, const Entry& entry, int64_t panel, float* one_hot) {
    std::vector<Table> tables;
    for (const int64_t part : entry.parts) tables.push_back(table_of_part(call, block, part, panel, one_hot));
    return tables;
}

// Those of the entries of a block.
std::vector<Table> tables_of(const InputCall& call, const Block& block, int64_t panel, float* one_hot) {
    std::vector<Table> tables;
    for (int64_t index = block.first; index < block.stop; ++index) {
        const Entry& entry = call.entries[index];
        if (!entry.is_joint()) {
            tables.push_back(table_of_part(call, block, entry.parts[0], panel, one_hot));
        } else {
            tables.push_back({joint_table(call, block, entry, panel), PANEL, entry.joint.data(), false});
        }
    }
    return tables;
}

// What the joint values of an entry add to the outputs: the sums of what their parts do.
void sum_parts(const InputCall& call, const Block& block, const Entry& entry, int64_t panel) {
    static const float none[PANEL] = {};
    const int64_t count = entry.samples.size(), columns = columns_of(call, panel);
    const auto tables = tables_of_parts(call, block, entry, panel, const_cast<float*>(call.a.one_hot));
    float* to = joint_table(call, block, entry, panel);
    for (int64_t value = 0; value < count; ++value, to += PANEL) {
        if (value + AHEAD < count) prefetch_far<0>(tables, entry.samples[value + AHEAD], columns);
        gather(tables, entry.samples[value], columns, none, to);
    }
}

// What each value of a column adds to the outputs: its basis and SiLU times the weights, and its own one-hot weights.
void fill_table(const InputCall& call, const Block& block, const InputColumn& column, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel);
    const int64_t depth = column.width * call.terms, values = column.values.size();
    float* weights = call.weights + call.panels * column.weights + panel * depth * PANEL;
    pack_weights(call, column.first, column.width, panel, weights);
    float* table = table_of(call, block, column, panel);
    memset(table, 0, values * PANEL * 4);
    for (int64_t index = 0; column.one_hot >= 0 && index < values; ++index) {
        const int64_t row = column.one_hot + column.values[index];
        copy_some(a.one_hot + row * a.outputs + panel * PANEL, columns, table + index * PANEL);
    }
    add_product(block.value_bases + column.bases, depth, 1, weights, PANEL, values, depth, columns, table, PANEL);
}

// The tables of some entries: those of their columns, and of their joint values.
void value_tables(const InputCall& call, const Block& block, int64_t panel, int64_t start, int64_t stop) {
    for_each_column(call, start, stop, [&](const InputColumn& column) { fill_table(call, block, column, panel); });
    for (int64_t index = start; index < stop; ++index) sum_parts(call, block, call.entries[index], panel);
}

// Adds the gradient of an entry's joint values to that of their parts.
void split_joint(const InputCall& call, const Block& block, const Entry& entry, int64_t panel) {
    const int64_t count = entry.samples.size(), columns = columns_of(call, panel);
    const auto tables = tables_of_parts(call, block, entry, panel, call.a.grad_one_hot);
    for (const int64_t part : entry.parts) {
        if (const InputColumn* column = call.column_of(part)) {
            memset(table_of(call, block, *column, panel), 0, column->values.size() * PANEL * 4);
        }
    }
    const float* gradient = joint_table(call, block, entry, panel);
    for (int64_t value = 0; value < count; ++value, gradient += PANEL) {
        if (value + AHEAD < count) prefetch_far<1>(tables, entry.samples[value + AHEAD], columns);
        add_to_entries(tables, entry.samples[value], gradient, columns);
    }
}

// Adds the gradients of rows to the entries of groups that stand alone.
void add_to_groups(const InputCall& call, const Block& block, int64_t panel, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel);
    std::vector<Table> tables;
    for (int64_t index = start; index < stop; ++index) {
        const Entry& entry = call.entries[index];
        const bool is_group = !entry.is_joint() && !call.column_of(entry.parts[0]);
        if (is_group) tables.push_back(table_of_part(call, block, entry.parts[0], panel, a.grad_one_hot));
    }
    for (int64_t b = 0; b < a.rows && !tables.empty(); ++b) {
        if (b + AHEAD < a.rows) prefetch_far<1>(tables, b + AHEAD, columns);
        add_to_entries(tables, b, a.grad_out + b * a.outputs + panel * PANEL, columns);
    }
}

// Fills a table with the sums of the gradients of the rows that have each value of an entry, in the order of the rows.
void sum_rows(const InputCall& call, const Entry& entry, int64_t panel, float* table) {
    constexpr int64_t VECTORS = PANEL / LANES;
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel), values = values_of(call, entry);
    const float* gradients = a.grad_out + panel * PANEL;
    const int32_t* end = entry.ends.data();
    int64_t next = 0;
    for (int64_t first = 0; first < a.rows; first += SORTED_ROWS) {
        for (int64_t value = 0; value < values; ++value, ++end) {
            float* to = table + value * PANEL;
            if (!first) memset(to, 0, PANEL * 4);
            Float sums[VECTORS];
#pragma GCC unroll 16
            for (int64_t v = 0; v < VECTORS; ++v) sums[v] = load(to + v * LANES);
            for (; columns == PANEL && next < *end; ++next) {
                const float* gradient = gradients + entry.order[next] * a.outputs;
#pragma GCC unroll 16
                for (int64_t v = 0; v < VECTORS; ++v) sums[v] += load(gradient + v * LANES);
            }
#pragma GCC unroll 16
            for (int64_t v = 0; v < VECTORS; ++v) store(to + v * LANES, sums[v]);
            for (; next < *end; ++next) add_row(gradients + entry.order[next] * a.outputs, columns, to);
        }
    }
}

// Adds what a block says to a panel of the outputs of some rows; the first block begins them.
void forward(const InputCall& call, const Block& block, int64_t panel, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel);
    const std::vector<Table> tables = tables_of(call, block, panel, const_cast<float*>(a.one_hot));
    const float* shift = block.first || !a.shift ? nullptr : a.shift + panel * PANEL;
    float* out = a.out + panel * PANEL;
    const float* begun = block.first ? out : a.bias + panel * PANEL;
    const int64_t begun_step = block.first ? a.outputs : 0;
    for (int64_t b = start; b < stop && !shift; ++b) {
        if (b + AHEAD < stop) prefetch_far<0>(tables, b + AHEAD, columns);
        gather(tables, b, columns, begun + b * begun_step, out + b * a.outputs);
    }
    for (int64_t b = start; b < stop && shift; ++b) {
        if (b + AHEAD < stop) prefetch_far<0>(tables, b + AHEAD, columns);
        // The shift may be in the place of the outputs.
        float sums[PANEL];
        gather(tables, b, columns, begun + b * begun_step, sums);
        add_row(shift + b * a.outputs, columns, sums);
        copy_some(sums, columns, out + b * a.outputs);
    }
}

// Calls `copy` for each row of each panel, with where its outputs are.
template <typename Copy>
void for_each_part(const InputCall& call, const Rows& rows, const Copy& copy) {
    for (int64_t panel = 0; panel < call.panels; ++panel) {
        float* out = call.a.out + rows.first * call.a.outputs + panel * PANEL;
        for (int64_t r = 0; r < rows.count; ++r) copy(panel, r, out + r * call.a.outputs, columns_of(call, panel));
    }
}

// Adds what the scores say to the outputs of some rows.
void scores(const InputCall& call, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    constexpr int64_t SIZE = ROWS_AT_A_TIME * PANEL;  // of a panel of sums
    Floats bases_memory, sums_memory;
    float* bases = bases_memory.make(ROWS_AT_A_TIME * 2 * padded(std::min(call.scores, SCORES_AT_A_TIME) * call.terms));
    float* sums = sums_memory.make(call.panels * SIZE, true);
    for (int64_t first = start; first < stop; first += ROWS_AT_A_TIME) {
        const Rows rows{first, std::min(stop - first, ROWS_AT_A_TIME)};
        for_each_part(call, rows, [&](int64_t panel, int64_t r, float* out, int64_t columns) {
            copy_some(out, columns, sums + panel * SIZE + r * PANEL);
        });
        for (int64_t next = 0; next < call.scores; next += SCORES_AT_A_TIME) {
            add_scores(call, scores_from(call, next), rows, bases, sums, SIZE);
        }
        for_each_part(call, rows, [&](int64_t panel, int64_t r, float* out, int64_t columns) {
            copy_some(sums + panel * SIZE + r * PANEL, columns, out);
        });
    }
}

// Adds the gradient of a column's values to its one-hot weights and its weights.
void split_values(const InputCall& call, const Block& block, const InputColumn& column, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel), values = column.values.size();
    const float* table = table_of(call, block, column, panel);
    for (int64_t index = 0; column.one_hot >= 0 && index < values; ++index) {
        float* own = a.grad_one_hot + (column.one_hot + column.values[index]) * a.outputs + panel * PANEL;
        for (int64_t h = 0; h < columns; ++h) own[h] += table[index * PANEL + h];
    }
    Floats memory;
    float* scratch = memory.make(PANEL * padded_terms(column.width, call.terms));
    add_weight_gradient(call, column.first, column.width, panel, table, values, block.value_bases + column.bases,
                        column.width * call.terms, scratch);
}

// Adds the gradient of every row to the bias.
void bias_gradient(const InputCall& call, int64_t panel) {
    const InputLayer& a = call.a;
    const float* gradient = a.grad_out + panel * PANEL;
    for (int64_t b = 0; b < a.rows; ++b) {
        add_row(gradient + b * a.outputs, columns_of(call, panel), a.grad_bias + panel * PANEL);
    }
}

// Adds the gradient of every row to some entries, to what the row has taken of them, and from these to the weights and
// to one-hot weights.
void scatter(const InputCall& call, const Block& block, int64_t panel, int64_t start, int64_t stop) {
    add_to_groups(call, block, panel, start, stop);
    for (int64_t index = start; index < stop; ++index) {
        const Entry& entry = call.entries[index];
        if (entry.is_joint()) {
            sum_rows(call, entry, panel, joint_table(call, block, entry, panel));
            split_joint(call, block, entry, panel);
        } else if (const InputColumn* column = call.column_of(entry.parts[0])) {
            sum_rows(call, entry, panel, table_of(call, block, *column, panel));
        }
    }
    for_each_column(call, start, stop, [&](const InputColumn& column) { split_values(call, block, column, panel); });
}

// Adds the gradient of the embeddings of some of a column's values.
void embedding_gradient(
    const InputCall& call, const Block& block, const InputColumn& column, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t terms = column.width * call.terms, step = padded_terms(column.width, call.terms);
    const int64_t values = stop - start;
    const float* bases = block.value_bases + column.bases + start * terms;
    Floats turned_memory, memory;
    float* turned = turned_memory.make(a.outputs * step);
    float* grad_bases = memory.make(values * step, true);
    turn_weights(call, column.first, column.width, turned);
    for (int64_t panel = 0; panel < call.panels; ++panel) {
        const float* table = table_of(call, block, column, panel) + start * PANEL;
        add_product(table, PANEL, 1, turned + panel * PANEL * step, step, values, columns_of(call, panel), terms,
                    grad_bases, step);
    }
    for (int64_t index = 0; index < values; ++index) {
        const int64_t value = column.values[start + index];
        add_x_gradient(a, inputs_of(a, column, value), column.width, bases + index * terms, grad_bases + index * step,
                       a.grad_embeddings[column.embedding] + value * column.width);
    }
}

// Adds the gradient of the scores of some rows.
void score_gradient(const InputCall& call, const float* turned, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t D = call.scores, step = padded_terms(D, call.terms);
    Floats memory;
    float* grad_bases = memory.make(GRADIENT_ROWS * step + step + 2 * padded(D));
    float* bases = grad_bases + GRADIENT_ROWS * step;
    float* x = bases + step;
    float* grad_x = x + padded(D);
    for (int64_t first = start; first < stop; first += GRADIENT_ROWS) {
        const int64_t rows = stop - first < GRADIENT_ROWS ? stop - first : GRADIENT_ROWS;
        memset(grad_bases, 0, rows * step * 4);
        add_product(a.grad_out + first * a.outputs, a.outputs, 1, turned, step, rows, a.outputs, D * call.terms,
                    grad_bases, step);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t row = (first + r) * a.features;
            for (int64_t i = 0; i < D; ++i) x[i] = a.scores[row + a.layout[1 + i]];
            fill_bases(a, x, D, bases);
            memset(grad_x, 0, D * 4);
            add_x_gradient(a, x, D, bases, grad_bases + r * step, grad_x);
            for (int64_t i = 0; i < D; ++i) a.grad_scores[row + a.layout[1 + i]] += grad_x[i];
        }
    }
}

}  // namespace

extern const dkan::InputPasses DKAN_INPUT_PASSES;
const dkan::InputPasses DKAN_INPUT_PASSES = {
    HAS_MATRIX_UNIT, value_bases,           value_tables,   score_weights, forward, scores,        pack_gradients,
    score_bases,     score_weight_gradient, score_gradient, turn_weights,  bias_gradient, scatter, embedding_gradient,
};
