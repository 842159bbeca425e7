// One call of a hidden layer with many outputs, forward or backward.

#include "hidden_call.h"

#include "tasks.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

using namespace dkan;

// Rows of a task, and how many tasks of the backward pass there are at most: each has gradients of its own.
constexpr int64_t FORWARD_ROWS = 192, MIN_BACKWARD_ROWS = 144, MAX_BACKWARD_TASKS = 16;
// Inputs whose weights are turned at a time: with eight centers, one line of a cache for each of 72 terms.
constexpr int64_t TURNED = 8;

// What products need of the weights: the forward pass, and gradients, have no `by_output`.
enum class Order { BY_TERM, BOTH };

// `count` copies of the weights of a network or their gradients, zeros at first, in one piece of memory.
class Copies {
  public:
    Copies(const Hidden& a, Order order, int64_t count)
        : a_(a),
          width_(padded(a.inputs)),
          terms_(terms_of(a)),
          outputs_(padded(a.outputs)),
          by_output_(order == Order::BOTH ? a.outputs * terms_ : 0),
          size_(terms_ * outputs_ + by_output_ + 2 * width_ + outputs_),
          memory_(count * size_) {}

    PackedProducts operator[](int64_t index) {
        float* by_term = memory_.data() + index * size_;
        float* by_output = by_term + terms_ * outputs_;
        float* norm_weight = by_output + by_output_;
        return {by_term, by_output, norm_weight, norm_weight + width_, norm_weight + 2 * width_};
    }

    void pack(int64_t network) {
        const PackedProducts to = (*this)[network];
        for_each_weight(network, [&](int64_t o, int64_t term, int64_t base, int64_t spline) {
            const float value = spline < 0 ? a_.base[base] : a_.spline[spline];
            to.by_term[term * outputs_ + o] = value;
            if (by_output_) to.by_output[o * terms_ + term] = value;
        });
        std::copy_n(a_.norm_weight + network * a_.inputs, a_.inputs, to.norm_weight);
        std::copy_n(a_.norm_bias + network * a_.inputs, a_.inputs, to.norm_bias);
        std::copy_n(a_.bias + network * a_.outputs, a_.outputs, to.bias);
    }

    // Adds copy `from` to copy `to`, number by number.
    void add(int64_t to, int64_t from) {
        const float* source = memory_.data() + from * size_;
        float* target = memory_.data() + to * size_;
        for (int64_t index = 0; index < size_; ++index) target[index] += source[index];
    }

    void add_gradients_to(int64_t network, int64_t index) {
        const PackedProducts from = (*this)[index];
        for_each_weight(network, [&](int64_t o, int64_t term, int64_t base, int64_t spline) {
            float& to = spline < 0 ? a_.grad_base[base] : a_.grad_spline[spline];
            to += from.by_term[term * outputs_ + o];
        });
        for (int64_t o = 0; o < a_.outputs; ++o) a_.grad_bias[network * a_.outputs + o] += from.bias[o];
        for (int64_t i = 0; i < a_.inputs; ++i) {
            a_.grad_norm_weight[network * a_.inputs + i] += from.norm_weight[i];
            a_.grad_norm_bias[network * a_.inputs + i] += from.norm_bias[i];
        }
    }

  private:
    // Calls `visit` with output and term of each weight, and its index among those of the SiLU, or of the basis, else -1.
    template <typename Visit>
    void for_each_weight(int64_t network, const Visit& visit) {
        const int64_t I = a_.inputs, G = a_.num_centers;
        for (int64_t first = 0; first < I; first += TURNED) {
            for (int64_t o = 0; o < a_.outputs; ++o) {
                for (int64_t i = first; i < std::min(I, first + TURNED); ++i) {
                    const int64_t index = (network * a_.outputs + o) * I + i;
                    visit(o, i, index, -1);
                    for (int64_t g = 0; g < G; ++g) visit(o, (1 + g) * width_ + i, -1, index * G + g);
                }
            }
        }
    }

    const Hidden& a_;
    int64_t width_, terms_, outputs_, by_output_, size_;
    std::vector<float> memory_;
};

}  // namespace

void dkan::hidden_product_forward(const Hidden& a, int threads) {
    Copies weights(a, Order::BY_TERM, a.networks);
    for (int64_t network = 0; network < a.networks; ++network) weights.pack(network);
    const int64_t ranges = ceil_div(a.rows, FORWARD_ROWS);
    const int64_t numbers = a.networks * a.rows * a.inputs * a.outputs;
    for_each_task(ranges * a.networks, numbers, threads, [&](int64_t task) {
        const int64_t network = task / ranges, start = task % ranges * FORWARD_ROWS;
        passes().hidden_product->forward(a, weights[network], network, start, std::min(a.rows, start + FORWARD_ROWS));
    });
}

void dkan::hidden_product_backward(const Hidden& a, int threads) {
    const int64_t tasks = std::max<int64_t>(1, MAX_BACKWARD_TASKS / a.networks);
    const int64_t step = std::max(MIN_BACKWARD_ROWS, ceil_div(a.rows, tasks));
    // At least one, whose gradients are 0 where there are no rows.
    const int64_t ranges = std::max<int64_t>(1, ceil_div(a.rows, step));
    Copies weights(a, Order::BOTH, a.networks), gradients(a, Order::BY_TERM, a.networks * ranges);
    for (int64_t network = 0; network < a.networks; ++network) weights.pack(network);
    const int64_t numbers = a.networks * a.rows * a.inputs * a.outputs;
    for_each_task(ranges * a.networks, numbers, threads, [&](int64_t task) {
        const int64_t network = task / ranges, start = task % ranges * step, stop = std::min(a.rows, start + step);
        passes().hidden_product->backward(a, weights[network], gradients[task], network, start, stop);
    });
    // In the order of the rows, whichever thread was done first.
    for (int64_t network = 0; network < a.networks; ++network) {
        const int64_t first = network * ranges;
        for (int64_t range = 1; range < ranges; ++range) gradients.add(first, first + range);
        gradients.add_gradients_to(network, first);
    }
}
