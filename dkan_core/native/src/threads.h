// Work cut into tasks for some threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace dkan {

// Calls `run(task)` for each task, in any order. Threads are started for this call alone: a pool would not survive the
// fork by which worker processes begin. There is one for each `share` of `amount`, the work that starting one is worth.
template <typename Run>
void for_each_task(int64_t tasks, int64_t amount, int64_t share, int threads, const Run& run) {
    const int64_t useful = std::min<int64_t>({tasks, threads, 1 + amount / share});
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t task = next++; task < tasks; task = next++) run(task);
    };
    std::vector<std::thread> others;
    for (int64_t other = 1; other < useful; ++other) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
}

}  // namespace dkan
