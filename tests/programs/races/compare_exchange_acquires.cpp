// The twin of compare_exchange_fails.cpp: a failure acquires.
#include <atomic>
#include <cstdio>
#include <thread>
static std::atomic<int *> slot{nullptr};
int main() {
    std::thread writer([] {
        int *fresh = new int;
        *fresh = 42;
        slot.store(fresh, std::memory_order_release);
    });
    int *seen = nullptr;
    while (seen == nullptr) {
        slot.compare_exchange_weak(seen, nullptr, std::memory_order_release,
                                   std::memory_order_acquire);
        std::this_thread::yield();
    }
    *seen += 1;
    std::printf("%d\n", *seen);
    writer.join();
    delete seen;
}
