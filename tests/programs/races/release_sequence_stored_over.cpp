// MISSED at stripped: a check of a flag looks like an acquire load there.
// A relaxed store ends the release sequence, also one by the same thread.
#include <atomic>
#include <cstdio>
#include <thread>
int payload;
std::atomic<int> stage;
int main() {
    std::thread writer([] {
        payload = 5; // RACE payload
        stage.store(1, std::memory_order_release);
        stage.store(2, std::memory_order_relaxed);
    });
    while (stage.load(std::memory_order_acquire) != 2)
        std::this_thread::yield();
    printf("%d\n", payload); // RACE payload
    writer.join();
}
