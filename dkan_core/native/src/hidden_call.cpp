// One call of a hidden layer, forward or backward.

#include "hidden_call.h"

#include "tasks.h"

#include <cstdint>
#include <numeric>
#include <vector>

#define DKAN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace dkan;

// Rows of a task, and how many tasks there are at most: each has gradients of its own.
constexpr int64_t MIN_TASK_ROWS = 64, MAX_TASKS = 64;

void add_numbers(const float* from, int64_t count, float* to) {
    for (int64_t index = 0; index < count; ++index) to[index] += from[index];
}

// `count` copies of the weights of a network, zeros at first, in one piece of memory.
class PackedWeights {
  public:
    PackedWeights(const Hidden& a, int64_t count)
        : width_(padded(a.inputs)), outputs_(a.outputs), centers_(a.num_centers), size_(size_of()), memory_(count * size_ + PADDING) {
        // At the beginning of a cache line, since vectors that lie across two are read twice.
        const uintptr_t line = 4 * PADDING, address = reinterpret_cast<uintptr_t>(memory_.data());
        first_ = memory_.data() + (line - address % line) % line / 4;
    }

    Packed operator[](int64_t index) {
        float* spline = first_ + index * size_;
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
    void add(int64_t to, int64_t from) { add_numbers(first_ + from * size_, size_, first_ + to * size_); }

    void add_gradients_to(const Hidden& a, int64_t network, int64_t index) {
        const Packed from = (*this)[index];
        const int64_t I = a.inputs;
        float* spline = a.grad_spline + network * outputs_ * I * centers_;
        for (int64_t o = 0; o < outputs_; ++o) {
            for (int64_t i = 0; i < I; ++i) {
                for (int64_t g = 0; g < centers_; ++g) {
                    spline[(o * I + i) * centers_ + g] += from.spline[(o * centers_ + g) * width_ + i];
                }
            }
            add_numbers(from.base + o * width_, I, a.grad_base + (network * outputs_ + o) * I);
        }
        add_numbers(from.norm_weight, I, a.grad_norm_weight + network * I);
        add_numbers(from.norm_bias, I, a.grad_norm_bias + network * I);
        add_numbers(from.bias, outputs_, a.grad_bias + network * outputs_);
    }

  private:
    int64_t size_of() const { return padded(outputs_ * (centers_ + 1) * width_ + 2 * width_ + outputs_); }

    int64_t width_, outputs_, centers_, size_;
    std::vector<float> memory_;
    float* first_;
};

}  // namespace

DKAN_EXPORT void dkan_hidden_forward(const Hidden* a, int threads) {
    if (a->outputs > MAX_OUTPUTS) return hidden_product_forward(*a, threads);
    PackedWeights weights(*a, a->networks);
    for (int64_t network = 0; network < a->networks; ++network) weights.pack(*a, network);
    const int64_t ranges = ceil_div(a->rows, MIN_TASK_ROWS);
    const int64_t numbers = a->networks * a->rows * a->inputs;
    for_each_task(ranges * a->networks, numbers, threads, [&](int64_t task) {
        const int64_t network = task / ranges, start = task % ranges * MIN_TASK_ROWS;
        passes().hidden_layer->forward(*a, weights[network], network, start, std::min(a->rows, start + MIN_TASK_ROWS));
    });
}

void dkan::hidden_backward(const Hidden& a, const Loss* loss, int threads) {
    const int64_t step = std::max(MIN_TASK_ROWS, ceil_div(a.rows, MAX_TASKS));
    // At least one, whose gradients are 0 where there are no rows.
    const int64_t ranges = std::max<int64_t>(1, ceil_div(a.rows, step));
    PackedWeights weights(a, a.networks), gradients(a, a.networks * ranges);
    std::vector<double> losses(a.networks * ranges);
    for (int64_t network = 0; network < a.networks; ++network) weights.pack(a, network);
    const int64_t numbers = a.networks * a.rows * a.inputs;
    for_each_task(ranges * a.networks, numbers, threads, [&](int64_t task) {
        const int64_t network = task / ranges, start = task % ranges * step;
        const int64_t stop = std::min(a.rows, start + step);
        losses[task] =
            passes().hidden_layer->backward(a, weights[network], gradients[task], loss, network, start, stop);
    });
    // In the order of the rows, whichever thread was done first.
    for (int64_t network = 0; network < a.networks; ++network) {
        const int64_t first = network * ranges;
        for (int64_t range = 1; range < ranges; ++range) gradients.add(first, first + range);
        gradients.add_gradients_to(a, network, first);
        if (loss) add_numbers(gradients[first].bias, a.outputs, loss->grad_shift);
    }
    if (loss) *loss->out = std::accumulate(losses.begin(), losses.end(), 0.0);
}

DKAN_EXPORT void dkan_hidden_backward(const Hidden* a, int threads) {
    if (a->outputs > MAX_OUTPUTS) return hidden_product_backward(*a, threads);
    hidden_backward(*a, nullptr, threads);
}
