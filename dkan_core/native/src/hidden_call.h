// The passes of a hidden layer, for those who have its inputs already.

#pragma once

#include "arguments.h"

namespace dkan {

// Adds the gradients of the weights to what is there, and computes that of the inputs, which may take their place. Given
// a loss, no gradient of the outputs is: computes that loss, too, and begins with its gradient.
void hidden_backward(const Hidden& a, const Loss* loss, int threads);

// Those of a layer with more than MAX_OUTPUTS outputs, without a loss.
void hidden_product_forward(const Hidden& a, int threads);
void hidden_product_backward(const Hidden& a, int threads);

}  // namespace dkan
