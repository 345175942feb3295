// MISSED at stripped: a check of a flag looks like an acquire load there.
// A fence before a relaxed load gives that load nothing.
#include <atomic>
#include <cstdio>
#include <thread>
int payload;
std::atomic<int> ready;
int main() {
    std::thread writer([] {
        payload = 5; // RACE payload
        ready.store(1, std::memory_order_release);
    });
    int seen = 0;
    while (!seen) {
        std::this_thread::yield();
        std::atomic_thread_fence(std::memory_order_acquire);
        seen = ready.load(std::memory_order_relaxed);
    }
    printf("%d\n", payload); // RACE payload
    writer.join();
}
