// MISSED at stripped: a check of a flag looks like an acquire load there.
// What is written behind a release fence is not published by it.
#include <atomic>
#include <cstdio>
#include <thread>
int early, late;
std::atomic<int> ready;
int main() {
    std::thread writer([] {
        early = 5;
        std::atomic_thread_fence(std::memory_order_release);
        late = 6; // RACE late
        ready.store(1, std::memory_order_relaxed);
    });
    while (!ready.load(std::memory_order_relaxed))
        std::this_thread::yield();
    std::atomic_thread_fence(std::memory_order_acquire);
    printf("%d\n", early);
    printf("%d\n", late); // RACE late
    writer.join();
}
