// What Python calls: chooses the passes that this processor has, and has them called.

#include "tasks.h"

#include <cstring>
#include <vector>

#define DKAN_EXPORT extern "C" __attribute__((visibility("default")))

extern const dkan::Passes portable;
#if defined(__x86_64__)
extern const dkan::Passes avx2;
extern const dkan::Passes avx512;
#endif

namespace {

using namespace dkan;

// Rows of a task of the hidden layer, and how many tasks there are at most: each has gradients of its own.
constexpr int64_t MIN_TASK_ROWS = 64, MAX_TASKS = 64;
// Inputs of a task of the basis, rows of a sum of table rows, and columns of its gradient.
constexpr int64_t BASIS_TASK = 4096, TABLE_TASK_ROWS = 64, TABLE_TASK_COLUMNS = 64;
// Columns that are encoded at once: a cache line of a row.
constexpr int64_t ENCODE_TASK_COLUMNS = 64;

std::vector<const Passes*> find_variants() {
    std::vector<const Passes*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw")) {
        found.push_back(&avx512);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&avx2);
#endif
    found.push_back(&portable);
    return found;
}

const std::vector<const Passes*>& variants() {
    static const std::vector<const Passes*> found = find_variants();
    return found;
}

// The fastest one, unless a test asks for another.
std::atomic<int> chosen{0};

// `count` copies of the weights of a network, zeros at first, in one piece of memory.
class PackedWeights {
  public:
    PackedWeights(const Hidden& a, int64_t count)
        : width_(padded(a.inputs)), outputs_(a.outputs), centers_(a.num_centers), size_(size_of()), memory_(count * size_) {}

    Packed operator[](int64_t index) {
        float* spline = memory_.data() + index * size_;
        float* base = spline + outputs_ * centers_ * width_;
        float* norm_weight = base + outputs_ * width_;
        return {spline, base, norm_weight, norm_weight + width_, norm_weight + 2 * width_};
    }

    void pack(const Hidden& a, int64_t network) {
        const Packed to = (*this)[network];
        const int64_t I = a.inputs;
        const float* spline = a.spline + network * outputs_ * I * centers_;
        for (int64_t o = 0; o < outputs_; ++o) {
            for (int64_t i = 0; i < I; ++i) {
                for (int64_t g = 0; g < centers_; ++g) {
                    to.spline[(o * centers_ + g) * width_ + i] = spline[(o * I + i) * centers_ + g];
                }
            }
            std::copy_n(a.base + (network * outputs_ + o) * I, I, to.base + o * width_);
        }
        std::copy_n(a.norm_weight + network * I, I, to.norm_weight);
        std::copy_n(a.norm_bias + network * I, I, to.norm_bias);
        std::copy_n(a.bias + network * outputs_, outputs_, to.bias);
    }

    // Adds copy `from` to copy `to`, number by number.
    void add(int64_t to, int64_t from) {
        for (int64_t place = 0; place < size_; ++place) memory_[to * size_ + place] += memory_[from * size_ + place];
    }

    void unpack_gradients(int64_t index, const Hidden& a, int64_t network) {
        const Packed from = (*this)[index];
        const int64_t I = a.inputs;
        float* spline = a.grad_spline + network * outputs_ * I * centers_;
        for (int64_t o = 0; o < outputs_; ++o) {
            for (int64_t i = 0; i < I; ++i) {
                for (int64_t g = 0; g < centers_; ++g) {
                    spline[(o * I + i) * centers_ + g] = from.spline[(o * centers_ + g) * width_ + i];
                }
            }
            std::copy_n(from.base + o * width_, I, a.grad_base + (network * outputs_ + o) * I);
        }
        std::copy_n(from.norm_weight, I, a.grad_norm_weight + network * I);
        std::copy_n(from.norm_bias, I, a.grad_norm_bias + network * I);
        std::copy_n(from.bias, outputs_, a.grad_bias + network * outputs_);
    }

  private:
    int64_t size_of() const { return padded(outputs_ * (centers_ + 1) * width_ + 2 * width_ + outputs_); }

    int64_t width_, outputs_, centers_, size_;
    std::vector<float> memory_;
};

}  // namespace

const Passes& dkan::passes() { return *variants()[chosen]; }

DKAN_EXPORT const char* dkan_fingerprint() { return DKAN_FINGERPRINT; }

DKAN_EXPORT int dkan_variants() { return static_cast<int>(variants().size()); }

DKAN_EXPORT const char* dkan_variant_name(int index) { return variants()[index]->name; }

DKAN_EXPORT void dkan_use_variant(int index) { chosen = index; }

DKAN_EXPORT void dkan_basis(const Basis* a, int backward, int threads) {
    const auto pass = backward ? passes().basis_backward : passes().basis_forward;
    for_each_task(ceil_div(a->count, BASIS_TASK), a->count * a->num_centers, threads, [&](int64_t task) {
        pass(*a, task * BASIS_TASK, std::min(a->count, (task + 1) * BASIS_TASK));
    });
}

DKAN_EXPORT void dkan_hidden_forward(const Hidden* a, int threads) {
    PackedWeights weights(*a, a->networks);
    for (int64_t network = 0; network < a->networks; ++network) weights.pack(*a, network);
    const int64_t stretches = ceil_div(a->rows, MIN_TASK_ROWS);
    const int64_t numbers = a->networks * a->rows * a->inputs;
    for_each_task(stretches * a->networks, numbers, threads, [&](int64_t task) {
        const int64_t network = task / stretches, start = task % stretches * MIN_TASK_ROWS;
        passes().hidden_forward(*a, weights[network], network, start, std::min(a->rows, start + MIN_TASK_ROWS));
    });
}

DKAN_EXPORT void dkan_hidden_backward(const Hidden* a, int threads) {
    const int64_t step = std::max(MIN_TASK_ROWS, ceil_div(a->rows, MAX_TASKS));
    // At least one, whose gradients are 0 where there are no rows.
    const int64_t stretches = std::max<int64_t>(1, ceil_div(a->rows, step));
    PackedWeights weights(*a, a->networks), gradients(*a, a->networks * stretches);
    for (int64_t network = 0; network < a->networks; ++network) weights.pack(*a, network);
    const int64_t numbers = a->networks * a->rows * a->inputs;
    for_each_task(stretches * a->networks, numbers, threads, [&](int64_t task) {
        const int64_t network = task / stretches, start = task % stretches * step;
        const int64_t stop = std::min(a->rows, start + step);
        passes().hidden_backward(*a, weights[network], gradients[task], network, start, stop);
    });
    // In the order of the rows, whichever thread was done first.
    for (int64_t network = 0; network < a->networks; ++network) {
        const int64_t first = network * stretches;
        for (int64_t stretch = 1; stretch < stretches; ++stretch) gradients.add(first, first + stretch);
        gradients.unpack_gradients(first, *a, network);
    }
}

// Returns the first place that is no row of the table, and nothing is computed then; -1 if all are.
DKAN_EXPORT int64_t dkan_table_sum(const TableSum* a, int backward, int threads) {
    const int64_t count = a->rows * a->per_row;
    for (int64_t place = 0; place < count; ++place) {
        if (a->places[place] < 0 || a->places[place] >= a->table_rows) return place;
    }
    const int64_t size = backward ? TABLE_TASK_COLUMNS : TABLE_TASK_ROWS, whole = backward ? a->width : a->rows;
    const auto pass = backward ? passes().table_backward : passes().table_forward;
    for_each_task(ceil_div(whole, size), count * a->width, threads, [&](int64_t task) {
        pass(*a, task * size, std::min(whole, (task + 1) * size));
    });
    return -1;
}

DKAN_EXPORT float dkan_adamw(const AdamW* a) { return passes().adamw(*a); }

DKAN_EXPORT void dkan_encode(const Encode* a, int threads) {
    for_each_task(ceil_div(a->count, ENCODE_TASK_COLUMNS), a->rows * a->count, threads, [&](int64_t task) {
        const int64_t first = task * ENCODE_TASK_COLUMNS;
        passes().encode(*a, first, std::min(a->count, first + ENCODE_TASK_COLUMNS));
    });
}
