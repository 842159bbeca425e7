// One call of the first layer, forward or backward: reads the layout, and has the passes called in their order.

#include "input_layer.h"
#include "tasks.h"

#define DKAN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace dkan;

// Rows of a task, and bytes of the basis of the rows of a chunk, which a gradient reads again and again.
constexpr int64_t TASK_ROWS = 96, CHUNK_BYTES = 1 << 20;
// Code of data/encoding/preprocessor.py that stands for values without a code of their own.
constexpr int32_t UNSEEN = 0;

Group read_group(const int64_t*& next) {
    Group group{next[0], next[1], next[2], -1, {}};
    const int64_t columns = next[3];
    next += 4;
    for (int64_t place = 0; place < columns; ++place, next += 2) group.columns.emplace_back(next[0], next[1]);
    return group;
}

// Embedded columns by codes come first among the groups.
InputCall read_layout(const InputLayer& a) {
    InputCall call{a, {}, {}, {}};
    call.panels = ceil_div(a.outputs, PANEL);
    call.terms = a.num_centers + 1;
    const int64_t* next = a.layout;
    const auto add_dense = [&](Stretch part, bool gradient) {
        part.column = call.row_terms;
        call.row_terms += part.width * call.terms;
        if (gradient) {
            part.turned = call.all_turned;
            call.all_turned += padded_to_panel(part.width * call.terms) * a.outputs;
            part.grad_x = call.grad_x_width;
            call.grad_x_width += part.width;
        }
        call.dense.push_back(part);
    };
    const int64_t scores = *next;
    if (scores) add_dense({0, scores, 0, 0, -1, -1, 0, 0, -1, 0}, a.grad_scores != nullptr);
    next += 1 + scores;
    const int64_t embedded = *next++;
    for (int64_t place = 0; place < embedded; ++place, next += 6) {
        Stretch part{next[3], next[2], next[0], next[1], place, next[5], 0, 0, -1, 0};
        if (!next[4]) {
            add_dense(part, true);
            continue;
        }
        part.column = call.table_rows;
        part.bases = call.all_bases;
        part.turned = call.all_turned;
        call.table_rows += part.codes;
        call.all_bases += part.codes * part.width * call.terms;
        call.all_turned += padded_to_panel(part.width * call.terms) * a.outputs;
        call.coded.push_back(part);
        call.groups.push_back({0, part.codes, 0, part.column, {{part.feature, 1}}});
    }
    for (int64_t groups = *next++; groups > 0; --groups) call.groups.push_back(read_group(next));
    return call;
}

// Finds the row of every group's table for each row; returns the first row with a code that has none, or -1.
int64_t find_places(InputCall& call) {
    const InputLayer& a = call.a;
    const int64_t T = call.groups.size();
    call.places.resize(a.rows * T);
    int64_t wrong = a.rows;
    for (int64_t t = 0; t < T; ++t) {
        const Group& group = call.groups[t];
        for (int64_t b = 0; b < a.rows; ++b) {
            int64_t place = 0;
            for (const auto& [feature, stride] : group.columns) place += a.codes[b * a.coded + feature] * stride;
            if (group.cap && place >= group.cap) place = UNSEEN;
            if (place < 0 || place >= group.size) wrong = std::min(wrong, b);
            call.places[b * T + t] = static_cast<int32_t>(place);
        }
    }
    for (const Stretch& part : call.dense) {
        for (int64_t b = 0; part.codes && b < a.rows; ++b) {
            const int32_t code = a.codes[b * a.coded + part.feature];
            if (code < 0 || code >= part.codes) wrong = std::min(wrong, b);
        }
    }
    return wrong < a.rows ? wrong : -1;
}

int64_t weight_count(const InputCall& call) { return call.panels * call.a.inputs * call.terms * PANEL; }

void make_code_bases(const InputCall& call, const InputPasses& pass, int threads) {
    for_each_task(call.coded.size(), call.all_bases, threads, [&](int64_t task) {
        pass.code_bases(call, call.coded[task]);
    });
}

void run_forward(InputCall& call, int threads) {
    const InputLayer& a = call.a;
    const InputPasses& pass = *passes().input_layer;
    Floats byte_bases, weights, bases, tables;
    call.byte_bases = byte_bases.make(256 * call.terms);
    call.weights = weights.make(weight_count(call));
    call.bases = bases.make(call.all_bases);
    call.tables = tables.make(call.panels * call.table_rows * PANEL);
    if (a.bytes) pass.byte_bases(call);
    make_code_bases(call, pass, threads);
    const int64_t columns = call.coded.size();
    for_each_task(call.panels, weight_count(call), threads, [&](int64_t panel) {
        pass.pack_weights(call, panel);
        for (int64_t column = 0; column < columns; ++column) pass.code_tables(call, call.coded[column], panel);
    });
    const int64_t numbers = a.rows * (call.row_terms + call.groups.size() * 4) * call.panels;
    for_each_task(ceil_div(a.rows, TASK_ROWS), numbers, threads, [&](int64_t task) {
        pass.forward(call, task * TASK_ROWS, std::min(a.rows, (task + 1) * TASK_ROWS));
    });
}

// The gradient of the weights of inputs that go through the basis row by row.
void run_weight_gradient(InputCall& call, const InputPasses& pass, int threads) {
    const InputLayer& a = call.a;
    if (!call.row_terms) return;
    const int64_t most = std::max<int64_t>(1, CHUNK_BYTES / (4 * call.row_terms * TASK_ROWS)) * TASK_ROWS;
    const int64_t size = std::min(a.rows, most);
    Floats bases, gradients;
    call.row_bases = bases.make(size * call.row_terms);
    call.gradients = gradients.make(call.panels * size * PANEL);
    for (int64_t first = 0; first < a.rows; first += size) {
        const Rows chunk{first, std::min(size, a.rows - first)};
        for_each_task(ceil_div(chunk.count, TASK_ROWS), chunk.count * call.row_terms, threads, [&](int64_t task) {
            const int64_t start = task * TASK_ROWS;
            pass.row_bases(call, chunk, first + start, first + std::min(chunk.count, start + TASK_ROWS));
        });
        for_each_task(call.panels, chunk.count * call.row_terms * call.panels, threads, [&](int64_t panel) {
            pass.weight_gradient(call, chunk, panel);
        });
    }
}

// The gradient of scores, and of embeddings by rows: rows of the same code are added in their order.
void run_x_gradient(InputCall& call, const InputPasses& pass, int threads) {
    const InputLayer& a = call.a;
    Floats grad_x;
    call.grad_x = grad_x.make(a.rows * call.grad_x_width);
    for (const Stretch& part : call.dense) {
        if (part.turned < 0) continue;
        const int64_t numbers = a.rows * part.width * call.terms * call.panels;
        for_each_task(ceil_div(a.rows, TASK_ROWS), numbers, threads, [&](int64_t task) {
            pass.row_x_gradient(call, part, task * TASK_ROWS, std::min(a.rows, (task + 1) * TASK_ROWS));
        });
        for (int64_t b = 0; b < a.rows; ++b) {
            const float* from = call.grad_x + b * call.grad_x_width + part.grad_x;
            for (int64_t i = 0; i < part.width; ++i) {
                float* to = part.codes ? a.grad_embeddings[part.place] +
                                             a.codes[b * a.coded + part.feature] * part.width + i
                                       : a.grad_scores + b * a.features + a.layout[1 + i];
                *to += from[i];
            }
        }
    }
}

void run_backward(InputCall& call, int threads) {
    const InputLayer& a = call.a;
    const InputPasses& pass = *passes().input_layer;
    Floats byte_bases, bases, turned, grad_weights, grad_tables;
    call.byte_bases = byte_bases.make(256 * call.terms);
    call.bases = bases.make(call.all_bases);
    call.turned = turned.make(call.all_turned);
    call.grad_weights = grad_weights.make(weight_count(call), true);
    call.grad_tables = grad_tables.make(call.panels * call.table_rows * PANEL, true);
    if (a.bytes) pass.byte_bases(call);
    make_code_bases(call, pass, threads);
    run_weight_gradient(call, pass, threads);
    const int64_t columns = call.coded.size(), entries = a.rows * call.groups.size() * PANEL;
    for_each_task(call.panels, call.panels * entries, threads, [&](int64_t panel) {
        pass.scatter(call, panel);
        for (int64_t column = 0; column < columns; ++column) pass.code_gradient(call, call.coded[column], panel);
        pass.unpack_gradient(call, panel);
    });
    for (const Stretch& part : call.dense) {
        if (part.turned >= 0) pass.turn_weights(call, part);
    }
    for_each_task(columns, call.all_bases * call.panels, threads, [&](int64_t task) {
        pass.turn_weights(call, call.coded[task]);
        pass.code_x_gradient(call, call.coded[task]);
    });
    run_x_gradient(call, pass, threads);
}

}  // namespace

// Returns the first row with a code that no table has, and nothing is computed then; -1 if there is none.
DKAN_EXPORT int64_t dkan_input_layer(const InputLayer* a, int backward, int threads) {
    InputCall call = read_layout(*a);
    const int64_t wrong = find_places(call);
    if (wrong >= 0) return wrong;
    (backward ? run_backward : run_forward)(call, threads);
    return -1;
}
