// flags: -std=c++20
#include <atomic>
#include <cstdio>
#include <thread>
static int count;
static int ready, value;
int main() {
    auto add = [] {
        for (int i = 0; i < 100; i++)
            std::atomic_ref<int>(count).fetch_add(1, std::memory_order_relaxed);
    };
    std::thread a(add), b([&] {
        add();
        value = 3;
        std::atomic_ref<int>(ready).store(1, std::memory_order_release);
    });
    while (!std::atomic_ref<int>(ready).load(std::memory_order_acquire))
        std::this_thread::yield();
    int seen = value;
    a.join();
    b.join();
    std::printf("%d %d\n", count, seen);
}
