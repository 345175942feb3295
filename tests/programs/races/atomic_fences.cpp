#include <atomic>
#include <cstdio>
#include <thread>
int payload;
std::atomic<bool> ready{false};
int main() {
    std::thread writer([] {
        payload = 11;
        std::atomic_thread_fence(std::memory_order_release);
        ready.store(true, std::memory_order_relaxed);
    });
    std::thread reader([] {
        while (!ready.load(std::memory_order_relaxed))
            std::this_thread::yield();
        std::atomic_thread_fence(std::memory_order_acquire);
        std::printf("%d\n", payload);
    });
    writer.join();
    reader.join();
}
