// Threads that wait for work: starting one takes as long as many passes do, and memory that it keeps would be lost.

#include "threads.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// Waking a thread that sleeps takes about as long, and the next tasks of a step come sooner.
constexpr std::chrono::microseconds SPIN{50};

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Tells whether something became true while it was waited for without sleeping.
template <typename Condition>
bool spin_until(const Condition& condition) {
    const auto deadline = std::chrono::steady_clock::now() + SPIN;
    do {
        for (int turn = 0; turn < 16; ++turn) {
            if (condition()) return true;
            relax();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

struct Call {
    int64_t tasks;
    void (*run)(const void* context, int64_t task);
    const void* context;
    int64_t wanted;  // helpers that may still join
    std::atomic<int64_t> next{0}, busy{0};

    void work() {
        for (int64_t task = next++; task < tasks; task = next++) run(context, task);
    }
};

// Helpers serve the calls of all threads.
class Pool {
  public:
    void run(Call& call) {
        std::unique_lock<std::mutex> lock(mutex_);
        while (helpers_ < call.wanted && start_helper()) ++helpers_;
        open_ += call.wanted;
        calls_.push_back(&call);
        // A helper that does not sleep yet looks once more before it does.
        const int64_t asleep = call.wanted - spinning_;
        lock.unlock();
        for (int64_t helper = 0; helper < asleep; ++helper) posted_.notify_one();
        call.work();
        lock.lock();
        open_ -= call.wanted;
        calls_.erase(std::find(calls_.begin(), calls_.end(), &call));
        lock.unlock();
        const auto is_done = [&] { return call.busy == 0; };
        if (spin_until(is_done)) return;
        lock.lock();
        done_.wait(lock, is_done);
    }

  private:
    bool start_helper() {
        // Signals are the program's own threads'.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        bool is_started = true;
        try {
            std::thread([this] { help(); }).detach();
        } catch (const std::system_error&) {
            is_started = false;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return is_started;
    }

    void help() {
        const auto is_wanted = [this] { return open_ > 0; };
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            if (!is_wanted()) {
                ++spinning_;
                lock.unlock();
                spin_until(is_wanted);
                lock.lock();
                --spinning_;
                posted_.wait(lock, is_wanted);
            }
            Call& call = **std::find_if(calls_.begin(), calls_.end(), [](const Call* each) { return each->wanted > 0; });
            --call.wanted, --open_, ++call.busy;
            lock.unlock();
            call.work();
            lock.lock();
            // The call is gone as soon as no thread is busy with it.
            if (--call.busy == 0) done_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable posted_, done_;
    std::vector<Call*> calls_;
    int64_t helpers_ = 0, spinning_ = 0;
    std::atomic<int64_t> open_{0};  // what all calls want
};

Pool* pool = nullptr;

// Never deleted: helpers wait in it until the process ends. A forked process has none of them, and starts its own.
void make_pool() { pool = new Pool; }

}  // namespace

void dkan::run_tasks(int64_t tasks, int64_t threads, void (*run)(const void*, int64_t), const void* context) {
    if (threads <= 1) {
        for (int64_t task = 0; task < tasks; ++task) run(context, task);
        return;
    }
    static std::once_flag is_made;
    std::call_once(is_made, [] {
        make_pool();
        pthread_atfork(nullptr, nullptr, make_pool);
    });
    Call call{tasks, run, context, threads - 1};
    pool->run(call);
}
