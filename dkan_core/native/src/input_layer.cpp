// The passes of a first layer. Compiled once for each kind of processor, with DKAN_INPUT_PASSES as the name of the table
// of functions that comes out.

#include "input_bases.h"
#include "products.h"

namespace {

using namespace dkan;

constexpr int64_t ROWS_AT_A_TIME = 48;  // a multiple of TILE_ROWS; their basis stays in the second-level cache

int64_t columns_of(const InputCall& call, int64_t panel) {
    const int64_t left = call.a.outputs - panel * PANEL;
    return left < PANEL ? left : PANEL;
}

float* weights_of(const InputCall& call, float* weights, const Stretch& part, int64_t panel) {
    return weights + (panel * call.a.inputs + part.first) * call.terms * PANEL;
}

void pack_weights(const InputCall& call, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, I = a.inputs, columns = columns_of(call, panel);
    const auto pack = [&](const Stretch& part) {
        float* to = weights_of(call, call.weights, part, panel);
        if (columns < PANEL) memset(to, 0, part.width * call.terms * PANEL * 4);
        for (int64_t start = 0; start < part.width * G; start += LANES) {
            const int64_t stop = start + LANES < part.width * G ? start + LANES : part.width * G;
            for (int64_t j = 0; j < columns; ++j) {
                const float* from = a.spline + ((panel * PANEL + j) * I + part.first) * G;
                for (int64_t k = start; k < stop; ++k) to[k * PANEL + j] = from[k];
            }
        }
        to += part.width * G * PANEL;
        for (int64_t j = 0; j < columns; ++j) {
            const float* from = a.base + (panel * PANEL + j) * I + part.first;
            for (int64_t i = 0; i < part.width; ++i) to[i * PANEL + j] = from[i];
        }
    };
    for (const Stretch& part : call.dense) pack(part);
    for (const Stretch& part : call.coded) pack(part);
}

void unpack_gradient(const InputCall& call, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, I = a.inputs, columns = columns_of(call, panel);
    const auto unpack = [&](const Stretch& part) {
        const float* from = weights_of(call, call.grad_weights, part, panel);
        for (int64_t start = 0; start < part.width * G; start += LANES) {
            const int64_t stop = start + LANES < part.width * G ? start + LANES : part.width * G;
            for (int64_t j = 0; j < columns; ++j) {
                float* to = a.grad_spline + ((panel * PANEL + j) * I + part.first) * G;
                for (int64_t k = start; k < stop; ++k) to[k] += from[k * PANEL + j];
            }
        }
        from += part.width * G * PANEL;
        for (int64_t j = 0; j < columns; ++j) {
            float* to = a.grad_base + (panel * PANEL + j) * I + part.first;
            for (int64_t i = 0; i < part.width; ++i) to[i] += from[i * PANEL + j];
        }
    };
    for (const Stretch& part : call.dense) unpack(part);
    for (const Stretch& part : call.coded) unpack(part);
}

void byte_bases(const InputCall& call) {
    for (int64_t byte = 0; byte < 256; ++byte) {
        fill_bases(call.a, call.a.byte_scores + byte, 1, call.byte_bases + byte * call.terms);
    }
}

void code_bases(const InputCall& call, const Stretch& part) {
    const int64_t size = part.width * call.terms;
    for (int64_t code = 0; code < part.codes; ++code) {
        const float* x = call.a.embeddings[part.place] + code * part.width;
        fill_bases(call.a, x, part.width, call.bases + part.bases + code * size);
    }
}

// What each code adds to the outputs: its embedding's basis and SiLU times the weights, and its own one-hot weights.
void code_tables(const InputCall& call, const Stretch& part, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel), depth = part.width * call.terms;
    float* table = call.tables + (panel * call.table_rows + part.column) * PANEL;
    memset(table, 0, part.codes * PANEL * 4);
    if (part.one_hot >= 0) {
        const float* own = a.one_hot + part.one_hot * a.outputs + panel * PANEL;
        for (int64_t code = 0; code < part.codes; ++code) {
            memcpy(table + code * PANEL, own + code * a.outputs, columns * 4);
        }
    }
    const float* weights = weights_of(call, call.weights, part, panel);
    add_product(call.bases + part.bases, depth, 1, weights, part.codes, depth, columns, table, PANEL);
}

// A row of a group's table, and how far apart its rows are.
struct Entries {
    float* first;
    int64_t step;
};

void fill_entries(const InputCall& call, int64_t panel, float* one_hot, float* tables, Entries* to) {
    for (const Group& group : call.groups) {
        if (group.table < 0) {
            *to++ = {one_hot + group.first * call.a.outputs + panel * PANEL, call.a.outputs};
        } else {
            *to++ = {tables + (panel * call.table_rows + group.table) * PANEL, PANEL};
        }
    }
}

void gather(const InputCall& call, int64_t panel, int64_t b, const Entries* entries, float* to) {
    const int64_t columns = columns_of(call, panel), T = call.groups.size();
    const int32_t* places = call.places.data() + b * T;
    const float* bias = call.a.bias + panel * PANEL;
    if (columns == PANEL) {
        constexpr int64_t VECTORS = PANEL / LANES;
        Float sums[VECTORS];
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) sums[v] = load(bias + v * LANES);
        for (int64_t t = 0; t < T; ++t) {
            const float* entry = entries[t].first + places[t] * entries[t].step;
#pragma GCC unroll 16
            for (int64_t v = 0; v < VECTORS; ++v) sums[v] += load(entry + v * LANES);
        }
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) store(to + v * LANES, sums[v]);
        return;
    }
    for (int64_t h = 0; h < columns; h += LANES) {
        Float total = load_some(bias + h, columns - h);
        for (int64_t t = 0; t < T; ++t) {
            total += load_some(entries[t].first + places[t] * entries[t].step + h, columns - h);
        }
        store(to + h, total);
    }
}

void forward(const InputCall& call, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    Floats memory, sums_memory;
    float* bases = memory.make(ROWS_AT_A_TIME * call.row_terms);
    float* sums = sums_memory.make(ROWS_AT_A_TIME * PANEL, true);
    std::vector<Entries> entries(call.groups.size());
    for (int64_t first = start; first < stop; first += ROWS_AT_A_TIME) {
        const int64_t rows = stop - first < ROWS_AT_A_TIME ? stop - first : ROWS_AT_A_TIME;
        for (int64_t r = 0; r < rows; ++r) fill_row(call, first + r, bases + r * call.row_terms);
        for (int64_t panel = 0; panel < call.panels; ++panel) {
            const int64_t columns = columns_of(call, panel);
            fill_entries(call, panel, const_cast<float*>(a.one_hot), call.tables, entries.data());
            for (int64_t r = 0; r < rows; ++r) gather(call, panel, first + r, entries.data(), sums + r * PANEL);
            for (const Stretch& part : call.dense) {
                const float* weights = weights_of(call, call.weights, part, panel);
                const int64_t depth = part.width * call.terms;
                add_product(bases + part.column, call.row_terms, 1, weights, rows, depth, columns, sums, PANEL);
            }
            for (int64_t r = 0; r < rows; ++r) {
                memcpy(a.out + (first + r) * a.outputs + panel * PANEL, sums + r * PANEL, columns * 4);
            }
        }
    }
}

// Of rows of a chunk the basis and SiLU, and the gradient in panels.
void row_bases(const InputCall& call, const Rows& chunk, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    for (int64_t b = start; b < stop; ++b) {
        const int64_t row = b - chunk.first;
        fill_row(call, b, call.row_bases + row * call.row_terms);
        for (int64_t panel = 0; panel < call.panels; ++panel) {
            const int64_t columns = columns_of(call, panel);
            float* to = call.gradients + (panel * chunk.count + row) * PANEL;
            memcpy(to, a.grad_out + b * a.outputs + panel * PANEL, columns * 4);
            memset(to + columns, 0, (PANEL - columns) * 4);
        }
    }
}

// Adds to the gradient of the weights what the rows of a chunk say, in their order.
void weight_gradient(const InputCall& call, const Rows& chunk, int64_t panel) {
    const int64_t columns = columns_of(call, panel);
    const float* gradients = call.gradients + panel * chunk.count * PANEL;
    for (const Stretch& part : call.dense) {
        float* to = weights_of(call, call.grad_weights, part, panel);
        add_product(call.row_bases + part.column, 1, call.row_terms, gradients, part.width * call.terms, chunk.count,
                    columns, to, PANEL);
    }
}

// Adds the gradient of every row to the bias and to the table rows that the row has taken.
void scatter(const InputCall& call, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel), T = call.groups.size();
    std::vector<Entries> entries(T);
    fill_entries(call, panel, a.grad_one_hot, call.grad_tables, entries.data());
    float* bias = a.grad_bias + panel * PANEL;
    for (int64_t b = 0; b < a.rows; ++b) {
        const int32_t* places = call.places.data() + b * T;
        const float* gradient = a.grad_out + b * a.outputs + panel * PANEL;
        const auto add = [&](float* to, int64_t h) {
            store_some(to + h, load_some(to + h, columns - h) + load_some(gradient + h, columns - h), columns - h);
        };
        for (int64_t h = 0; h < columns; h += LANES) add(bias, h);
        for (int64_t t = 0; t < T; ++t) {
            float* entry = entries[t].first + places[t] * entries[t].step;
            for (int64_t h = 0; h < columns; h += LANES) add(entry, h);
        }
    }
}

// From the gradient of a column's table to that of its one-hot weights and of its part of the weights.
void code_gradient(const InputCall& call, const Stretch& part, int64_t panel) {
    const InputLayer& a = call.a;
    const int64_t columns = columns_of(call, panel), depth = part.width * call.terms;
    const float* table = call.grad_tables + (panel * call.table_rows + part.column) * PANEL;
    if (part.one_hot >= 0) {
        for (int64_t code = 0; code < part.codes; ++code) {
            float* own = a.grad_one_hot + (part.one_hot + code) * a.outputs + panel * PANEL;
            for (int64_t h = 0; h < columns; ++h) own[h] += table[code * PANEL + h];
        }
    }
    float* to = weights_of(call, call.grad_weights, part, panel);
    add_product(call.bases + part.bases, 1, depth, table, depth, part.codes, columns, to, PANEL);
}

// The weights of an embedding's basis and SiLU, with outputs as rows.
void turn_weights(const InputCall& call, const Stretch& part) {
    const InputLayer& a = call.a;
    const int64_t G = a.num_centers, H = a.outputs, count = part.width * G, all = part.width * call.terms;
    for (int64_t h = 0; h < H; ++h) {
        const float* spline = a.spline + (h * a.inputs + part.first) * G;
        const float* base = a.base + h * a.inputs + part.first;
        for (int64_t k = 0; k < padded_to_panel(all); ++k) {
            const float weight = k < count ? spline[k] : k < all ? base[k - count] : 0;
            call.turned[part.turned + (k / PANEL * H + h) * PANEL + k % PANEL] = weight;
        }
    }
}

// The gradients of the basis and SiLU of some rows, or of codes; `gradient(row, panel)` is where theirs begins.
template <typename Gradient>
void multiply_turned(
    const InputCall& call, const Stretch& part, int64_t rows, int64_t row_step, const Gradient& gradient, float* to) {
    const int64_t all = part.width * call.terms, width = padded_to_panel(all);
    memset(to, 0, rows * width * 4);
    for (int64_t start = 0; start < all; start += PANEL) {
        const float* weights = call.turned + part.turned + start * call.a.outputs;
        const int64_t count = all - start < PANEL ? all - start : PANEL;
        for (int64_t panel = 0; panel < call.panels; ++panel) {
            add_product(gradient(panel), row_step, 1, weights + panel * PANEL * PANEL, rows, columns_of(call, panel),
                        count, to + start, width);
        }
    }
}

void code_x_gradient(const InputCall& call, const Stretch& part) {
    const InputLayer& a = call.a;
    const int64_t all = part.width * call.terms, width = padded_to_panel(all);
    Floats memory;
    float* grad_bases = memory.make(part.codes * width);
    const auto gradient = [&](int64_t panel) {
        return call.grad_tables + (panel * call.table_rows + part.column) * PANEL;
    };
    multiply_turned(call, part, part.codes, PANEL, gradient, grad_bases);
    for (int64_t code = 0; code < part.codes; ++code) {
        const int64_t place = code * part.width;
        add_x_gradient(a, a.embeddings[part.place] + place, part.width, call.bases + part.bases + code * all,
                       grad_bases + code * width, a.grad_embeddings[part.place] + place);
    }
}

void row_x_gradient(const InputCall& call, const Stretch& part, int64_t start, int64_t stop) {
    const InputLayer& a = call.a;
    const int64_t width = padded_to_panel(part.width * call.terms);
    Floats memory, bases_memory, x_memory;
    float* grad_bases = memory.make(ROWS_AT_A_TIME * width);
    float* bases = bases_memory.make(call.row_terms);
    float* x = x_memory.make(part.width);
    for (int64_t first = start; first < stop; first += ROWS_AT_A_TIME) {
        const int64_t rows = stop - first < ROWS_AT_A_TIME ? stop - first : ROWS_AT_A_TIME;
        const auto gradient = [&](int64_t panel) { return a.grad_out + first * a.outputs + panel * PANEL; };
        multiply_turned(call, part, rows, a.outputs, gradient, grad_bases);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t b = first + r;
            fill_row(call, b, bases);
            for (int64_t i = 0; i < part.width; ++i) {
                x[i] = part.codes ? a.embeddings[part.place][a.codes[b * a.coded + part.feature] * part.width + i]
                                  : a.scores[b * a.features + a.layout[1 + i]];
            }
            float* to = call.grad_x + b * call.grad_x_width + part.grad_x;
            memset(to, 0, part.width * 4);
            add_x_gradient(a, x, part.width, bases + part.column, grad_bases + r * width, to);
        }
    }
}

}  // namespace

extern const dkan::InputPasses DKAN_INPUT_PASSES;
const dkan::InputPasses DKAN_INPUT_PASSES = {
    pack_weights,    byte_bases,    code_bases,   code_tables,     forward,        row_bases,       weight_gradient,
    scatter,         code_gradient, turn_weights, code_x_gradient, row_x_gradient, unpack_gradient,
};
