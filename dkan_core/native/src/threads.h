// Work cut into tasks for some threads.

#pragma once

#include <algorithm>
#include <cstdint>

namespace dkan {

// Calls `run(context, task)` for each task, in any order, on so many threads, this one included, that live on.
void run_tasks(int64_t tasks, int64_t threads, void (*run)(const void* context, int64_t task), const void* context);

// Calls `run(task)` for each task, in any order. There is a thread for each `share` of `amount`, the work that waking one
// is worth.
template <typename Run>
void for_each_task(int64_t tasks, int64_t amount, int64_t share, int threads, const Run& run) {
    const int64_t useful = std::min<int64_t>({tasks, threads, 1 + amount / share});
    const auto call = [](const void* context, int64_t task) { (*static_cast<const Run*>(context))(task); };
    run_tasks(tasks, useful, call, &run);
}

}  // namespace dkan
