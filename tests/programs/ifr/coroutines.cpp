// SILENT
// FLAGS -std=c++20
// C++20 coroutines that two threads resume in turn, handed over by a lock.
#include <coroutine>
#include <cstdio>
#include <mutex>
#include <thread>
struct Task {
    struct promise_type {
        long value = 0;
        Task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(long v) { value = v; return {}; }
        void return_void() {}
        void unhandled_exception() {}
    };
    std::coroutine_handle<promise_type> handle;
};
static long shared[8];
static Task count() { for (long i = 0; i < 10000; i++) { for (long &s : shared) s += i; co_yield i; } }
int main() {
    Task task = count(); std::mutex lock; long sum = 0;
    auto work = [&] { for (int i = 0; i < 5000; i++) { std::lock_guard<std::mutex> hold(lock); task.handle.resume(); sum += task.handle.promise().value; } };
    std::thread other(work); work(); other.join();
    std::printf("%ld\n", sum);
    task.handle.destroy();
    return sum != 49995000;
}
