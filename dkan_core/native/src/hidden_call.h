// The backward pass of a hidden layer, for those who have its inputs already.

#pragma once

#include "arguments.h"

namespace dkan {

// Adds the gradients of the weights to what is there, and computes that of the inputs, which may take their place. Given
// a loss, no gradient of the outputs is: computes that loss, too, and begins with its gradient.
void hidden_backward(const Hidden& a, const Loss* loss, int threads);

}  // namespace dkan
