// MISSED at stripped: a check of a flag looks like an acquire load there.
// Relaxed orders nothing.
#include <atomic>
#include <cstdio>
#include <thread>
int payload;
std::atomic<bool> ready{false};
int main() {
    std::thread writer([] {
        payload = 11; // RACE payload
        ready.store(true, std::memory_order_relaxed);
    });
    std::thread reader([] {
        while (!ready.load(std::memory_order_relaxed))
            std::this_thread::yield();
        std::printf("%d\n", payload); // RACE payload
    });
    writer.join();
    reader.join();
}
