// One call of the first layer, forward or backward: reads the layout, and has the passes called in their order.

#include "hidden_call.h"
#include "input_layer.h"
#include "pairs.h"
#include "tasks.h"

#include <bitset>

#define DKAN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace dkan;

// Rows of a task, values of one, and bytes of the bases of rows of a chunk, which a gradient reads again and again.
constexpr int64_t TASK_ROWS = 192, TASK_VALUES = 288, CHUNK_BYTES = 1 << 20;
// Rows of the tables of a block: 512 KiB of a panel, which stay in the second-level cache.
constexpr int64_t BLOCK_ROWS = 2048;
constexpr int64_t BYTES = 256;
// A matrix unit is faster than the tables of columns of bytes with so many values among the first rows, if these columns
// are as many as here.
constexpr int64_t SAMPLED_ROWS = 64, MANY_VALUES = 32, MANY_COLUMNS = 10;
// Code of data/encoding/preprocessor.py that stands for values without a code of their own.
constexpr int32_t UNSEEN = 0;
// Memory that a thread keeps: more is given back.
constexpr int64_t KEPT_BYTES = 64 << 20;

struct Kept {
    std::vector<std::pair<int64_t, float*>> pieces;
    int64_t bytes = 0;
    ~Kept() {
        for (const auto& piece : pieces) std::free(piece.second);
    }
};
thread_local Kept kept;

Group read_group(const int64_t*& next) {
    Group group{next[0], next[1], next[2], {}};
    const int64_t columns = next[3];
    next += 4;
    for (int64_t index = 0; index < columns; ++index, next += 2) group.columns.emplace_back(next[0], next[1]);
    return group;
}

bool has_many_values(const InputLayer& a, int64_t feature) {
    if (!a.bf16_parts || !passes().input_layer->multiplies_bytes) return false;
    std::bitset<BYTES> found;
    for (int64_t b = 0; b < std::min(a.rows, SAMPLED_ROWS); ++b) found.set(a.bytes[b * a.features + feature]);
    return static_cast<int64_t>(found.count()) >= MANY_VALUES;
}

// Inputs that are scores: bytes have tables, unless there are many of many values.
void read_scores(InputCall& call, const int64_t* features, int64_t count) {
    std::vector<int64_t> multiplied;
    for (int64_t i = 0; i < count; ++i) {
        if (!call.a.bytes || has_many_values(call.a, features[i])) multiplied.push_back(i);
    }
    if (call.a.bytes && static_cast<int64_t>(multiplied.size()) < MANY_COLUMNS) multiplied.clear();
    for (int64_t i = 0; i < count; ++i) {
        if (!std::binary_search(multiplied.begin(), multiplied.end(), i)) {
            call.columns.push_back({i, 1, features[i], BYTES, -1, -1, {}, 0, 0, 0});
        }
    }
    call.scores = multiplied.size();
    for (const int64_t i : multiplied) call.score_features.push_back(features[i]);
    call.score_inputs = std::move(multiplied);
}

InputCall read_layout(const InputLayer& a) {
    InputCall call{a, ceil_div(a.outputs, PANEL), a.num_centers + 1};
    const int64_t* next = a.layout;
    const int64_t scores = *next++;
    read_scores(call, next, scores);
    next += scores;
    const int64_t embedded = *next++;
    for (int64_t embedding = 0; embedding < embedded; ++embedding, next += 5) {
        call.columns.push_back({next[3], next[2], next[0], next[1], embedding, next[4], {}, 0, 0, 0});
    }
    for (int64_t groups = *next++; groups > 0; --groups) call.groups.push_back(read_group(next));
    return call;
}

// Finds the row of a group's table for all rows; returns the first row that has none.
int64_t find_group(const InputLayer& a, const Group& group, int32_t* indices) {
    int64_t wrong = a.rows;
    for (int64_t b = 0; b < a.rows; ++b) {
        int64_t index = 0;
        for (const auto& [feature, stride] : group.columns) index += a.codes[b * a.coded + feature] * stride;
        if (group.cap && index >= group.cap) index = UNSEEN;
        if (index < 0 || index >= group.size) wrong = std::min(wrong, b);
        indices[b] = static_cast<int32_t>(index);
    }
    return wrong;
}

// Finds the values of a column that occur, and which of them each row has; returns the first row of no value.
int64_t find_values(const InputLayer& a, InputColumn& column, int32_t* indices) {
    std::vector<int32_t> known(column.codes, -1);
    for (int64_t b = 0; b < a.rows; ++b) {
        const int32_t value = column.embedding < 0 ? a.bytes[b * a.features + column.feature]
                                               : a.codes[b * a.coded + column.feature];
        if (value < 0 || value >= column.codes) return b;
        if (known[value] < 0) {
            known[value] = static_cast<int32_t>(column.values.size());
            column.values.push_back(value);
        }
        indices[b] = known[value];
    }
    return a.rows;
}

// Finds the indices of all groups and columns; returns the first row with a code that no table has.
int64_t find_indices(InputCall& call, int threads) {
    const int64_t B = call.a.rows, groups = call.groups.size(), parts = groups + call.columns.size();
    call.indices.resize(B * parts);
    std::vector<int64_t> wrong(parts, B);
    for_each_task(parts, B * parts * 4, threads, [&](int64_t part) {
        int32_t* indices = call.indices.data() + B * part;
        wrong[part] = part < groups ? find_group(call.a, call.groups[part], indices)
                                    : find_values(call.a, call.columns[part - groups], indices);
    });
    return parts ? *std::min_element(wrong.begin(), wrong.end()) : B;
}

// All columns of bytes have the same basis.
void make_byte_bases(InputCall& call) {
    InputColumn bytes{0, 1, 0, BYTES, -1, -1, {}, 0, 0, 0};
    for (int32_t value = 0; value < BYTES; ++value) bytes.values.push_back(value);
    Block block{0, 0, {}, 0, 0, 0, call.byte_memory.make(BYTES * call.terms + PANEL), {}};
    passes().input_layer->value_bases(call, block, bytes);
    call.byte_bases = block.value_bases;
    if (!call.scores) return;
    const int64_t size = BYTES * call.terms;
    call.byte_parts.resize(2 * size);
    for (int64_t i = 0; i < size; ++i) {
        const float value = call.byte_bases[i];
        call.byte_parts[i] = half_of(value);
        call.byte_parts[size + i] = half_of(value - float_of(call.byte_parts[i]));
    }
}

void add_column(InputCall& call, Block& block, int64_t index) {
    InputColumn& column = call.columns[index];
    column.row = block.rows;
    column.bases = block.bases;
    column.weights = block.weights;
    block.columns.push_back(index);
    block.rows += column.values.size();
    block.bases += column.values.size() * column.width * call.terms;
    block.weights += column.width * call.terms * PANEL;
}

// There is one block at least, since the first one begins the sums. Where blocks end changes no sum.
void cut_blocks(InputCall& call) {
    const int64_t entries = call.entries.size(), groups = call.groups.size();
    call.blocks.push_back({});
    for (int64_t index = 0; index < entries; ++index) {
        Entry& entry = call.entries[index];
        int64_t rows = entry.samples.size();
        for (const int64_t part : entry.parts) rows += part < groups ? 0 : call.columns[part - groups].values.size();
        const int64_t before = call.blocks.back().rows;
        if (before && rows && before + rows > BLOCK_ROWS) {
            call.blocks.push_back({});
            call.blocks.back().first = index;
        }
        Block& block = call.blocks.back();
        for (const int64_t part : entry.parts) {
            if (part >= groups) add_column(call, block, part - groups);
        }
        entry.row = block.rows;
        block.rows += entry.samples.size();
        block.stop = index + 1;
    }
}

// Those of the forward pass serve the backward pass, too.
void make_bases(InputCall& call, Block& block, int threads) {
    if (block.value_bases) return;
    // Products read whole vectors, also behind the last number.
    block.value_bases = block.memory.make(block.bases + PANEL);
    for_each_task(block.columns.size(), block.bases, threads, [&](int64_t task) {
        passes().input_layer->value_bases(call, block, call.columns[block.columns[task]]);
    });
}

// Calls a pass for some of a block's entries, and each panel: for all at a time, if there are panels enough for all threads.
void for_each_share(
    const InputCall& call,
    const Block& block,
    int64_t numbers,
    int threads,
    void (*pass)(const InputCall&, const Block&, int64_t panel, int64_t start, int64_t stop)) {
    const int64_t entries = block.stop - block.first;
    const int64_t shares = threads > call.panels ? std::min(entries, ceil_div(2 * threads, call.panels)) : 1;
    for_each_task(call.panels * shares, numbers, threads, [&](int64_t task) {
        const int64_t share = task % shares;
        pass(call, block, task / shares, block.first + entries * share / shares,
             block.first + entries * (share + 1) / shares);
    });
}

void run_forward(InputCall& call, int threads) {
    const InputLayer& a = call.a;
    const InputPasses& pass = *passes().input_layer;
    Floats score_weights;
    call.score_weights = score_weights.make(call.scores ? call.panels * score_weights_size(call) : 0);
    if (call.scores) {
        for (int64_t panel = 0; panel < call.panels; ++panel) pass.score_weights(call, panel);
    }
    for (Block& block : call.blocks) {
        Floats weights, tables;
        make_bases(call, block, threads);
        call.weights = weights.make(call.panels * block.weights);
        call.tables = tables.make(call.panels * block.rows * PANEL);
        const int64_t entries = block.stop - block.first, tasks = ceil_div(a.rows, TASK_ROWS);
        const int64_t products = call.panels * (block.weights + block.bases * PANEL / 8);
        for_each_share(call, block, products, threads, pass.value_tables);
        // All rows of a panel one after the other: its tables stay in the cache.
        for_each_task(call.panels * tasks, a.rows * entries * call.panels * 4, threads, [&](int64_t task) {
            const int64_t start = task % tasks * TASK_ROWS;
            pass.forward(call, block, task / tasks, start, std::min(a.rows, start + TASK_ROWS));
        });
        if (block.first || !call.scores) continue;
        for_each_task(tasks, a.rows * call.scores * call.terms * call.panels * 4, threads, [&](int64_t task) {
            pass.scores(call, task * TASK_ROWS, std::min(a.rows, (task + 1) * TASK_ROWS));
        });
    }
}

// The gradient of the weights of some scores.
void run_score_weight_gradient(InputCall& call, const InputPasses& pass, const Scores& some, int threads) {
    const InputLayer& a = call.a;
    const int64_t terms = some.count * call.terms;
    const int64_t most = std::max<int64_t>(1, CHUNK_BYTES / (4 * terms * TASK_ROWS)) * TASK_ROWS;
    const int64_t size = std::min(a.rows, most), numbers = size * terms * call.panels;
    Floats bases, sums;
    call.score_bases = bases.make((size + 2 * PADDING) * terms + PANEL);
    call.score_sums = sums.make(call.panels * PANEL * padded_terms(some.count, call.terms));
    for (int64_t first = 0; first < a.rows; first += size) {
        const Rows chunk{first, std::min(size, a.rows - first)};
        for_each_task(ceil_div(chunk.count, TASK_ROWS), numbers, threads, [&](int64_t task) {
            const int64_t start = task * TASK_ROWS;
            pass.score_bases(call, some, chunk, first + start, first + std::min(chunk.count, start + TASK_ROWS));
        });
        for_each_task(call.panels, numbers, threads, [&](int64_t panel) {
            pass.score_weight_gradient(call, some, chunk, panel);
        });
    }
}

// That of the weights of scores that are no bytes, and that of the scores where it is wanted.
void run_score_gradients(InputCall& call, const InputPasses& pass, int threads) {
    const InputLayer& a = call.a;
    if (!call.scores || !a.rows) return;
    Floats gradients;
    call.gradients = gradients.make(call.panels * gradient_size(call));
    for_each_task(ceil_div(a.rows, TASK_ROWS), a.rows * a.outputs, threads, [&](int64_t task) {
        pass.pack_gradients(call, task * TASK_ROWS, std::min(a.rows, (task + 1) * TASK_ROWS));
    });
    for (int64_t first = 0; first < call.scores; first += SCORES_AT_A_TIME) {
        run_score_weight_gradient(call, pass, scores_from(call, first), threads);
    }
    const int64_t terms = call.scores * call.terms;
    if (!a.grad_scores) return;
    Floats turned;
    float* weights = turned.make(a.outputs * padded_terms(call.scores, call.terms));
    pass.turn_weights(call, 0, call.scores, weights);
    for_each_task(ceil_div(a.rows, TASK_ROWS), a.rows * terms * call.panels, threads, [&](int64_t task) {
        pass.score_gradient(call, weights, task * TASK_ROWS, std::min(a.rows, (task + 1) * TASK_ROWS));
    });
}

void run_embedding_gradients(const InputCall& call, const Block& block, int threads) {
    struct Task {
        const InputColumn& column;
        int64_t start, stop;
    };
    std::vector<Task> tasks;
    for (const int64_t index : block.columns) {
        const InputColumn& column = call.columns[index];
        const int64_t values = column.embedding < 0 ? 0 : column.values.size();
        for (int64_t start = 0; start < values; start += TASK_VALUES) {
            tasks.push_back({column, start, std::min(values, start + TASK_VALUES)});
        }
    }
    for_each_task(tasks.size(), block.bases * call.panels, threads, [&](int64_t task) {
        const auto& [column, start, stop] = tasks[task];
        passes().input_layer->embedding_gradient(call, block, column, start, stop);
    });
}

void run_backward(InputCall& call, int threads) {
    const InputLayer& a = call.a;
    const InputPasses& pass = *passes().input_layer;
    run_score_gradients(call, pass, threads);
    for_each_task(call.panels, a.rows * a.outputs, threads, [&](int64_t panel) { pass.bias_gradient(call, panel); });
    for_each_task(call.entries.size(), call.entries.size() * a.rows, threads, [&](int64_t index) {
        sort_rows(call, call.entries[index]);
    });
    for (Block& block : call.blocks) {
        Floats tables;
        make_bases(call, block, threads);
        call.tables = tables.make(call.panels * block.rows * PANEL);
        const int64_t entries = block.stop - block.first;
        for_each_share(call, block, call.panels * a.rows * entries * 4, threads, pass.scatter);
        run_embedding_gradients(call, block, threads);
    }
}

// Returns the first row with a code that no table has, and nothing else is done then; -1 if there is none.
int64_t prepare(InputCall& call, bool joins, int threads) {
    const InputLayer& a = call.a;
    const int64_t wrong = find_indices(call, threads);
    if (wrong < a.rows) return wrong;
    list_entries(call);
    if (joins) join_entries(call);
    cut_blocks(call);
    if (a.bytes) make_byte_bases(call);
    return -1;
}

}  // namespace

dkan::Floats::Floats(Floats&& other) : memory_(other.memory_), bytes_(other.bytes_) { other.memory_ = nullptr; }

float* dkan::Floats::make(int64_t count, bool zero) {
    bytes_ = (count * 4 + 127) / 64 * 64;
    auto& pieces = kept.pieces;
    // The smallest that is large enough, unless it is far too large.
    auto best = pieces.end();
    for (auto piece = pieces.begin(); piece != pieces.end(); ++piece) {
        const bool fits = piece->first >= bytes_ && piece->first <= 4 * bytes_;
        if (fits && (best == pieces.end() || piece->first < best->first)) best = piece;
    }
    if (best == pieces.end()) {
        memory_ = static_cast<float*>(std::aligned_alloc(64, bytes_));
    } else {
        memory_ = best->second;
        bytes_ = best->first;
        kept.bytes -= bytes_;
        pieces.erase(best);
    }
    if (zero) memset(memory_, 0, count * 4);
    return memory_;
}

dkan::Floats::~Floats() {
    if (!memory_) return;
    if (kept.bytes + bytes_ > KEPT_BYTES) {
        std::free(memory_);
        return;
    }
    kept.pieces.emplace_back(bytes_, memory_);
    kept.bytes += bytes_;
}

DKAN_EXPORT int64_t dkan_input_layer(const InputLayer* a, int backward, int threads) {
    InputCall call = read_layout(*a);
    // What a row's outputs are then depends on no other row, to the bit.
    const int64_t wrong = prepare(call, false, threads);
    if (wrong < 0) (backward ? run_backward : run_forward)(call, threads);
    return wrong;
}

DKAN_EXPORT int64_t dkan_training_step(const TrainingStep* step, int threads) {
    InputCall call = read_layout(step->input);
    const int64_t wrong = prepare(call, true, threads);
    if (wrong >= 0) return wrong;
    run_forward(call, threads);
    hidden_backward(step->hidden, &step->loss, threads);
    run_backward(call, threads);
    return -1;
}
