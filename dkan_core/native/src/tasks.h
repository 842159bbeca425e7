// Cuts passes into tasks for as many threads as they are worth.

#pragma once

#include "arguments.h"
#include "threads.h"

namespace dkan {

// The fastest passes that this processor has, unless a test asks for others.
const Passes& passes();

// Waking a thread takes about as long as so many numbers do.
constexpr int64_t NUMBERS_PER_THREAD = 1 << 14;

// Tasks that depend on no other, each of which computes the same whatever the number of threads.
template <typename Run>
void for_each_task(int64_t tasks, int64_t numbers, int threads, const Run& run) {
    for_each_task(tasks, numbers, NUMBERS_PER_THREAD, threads, run);
}

inline int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

}  // namespace dkan
