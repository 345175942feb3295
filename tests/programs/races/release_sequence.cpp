// Relaxed changes, by this thread and another, go on with the release sequence.
#include <atomic>
#include <cstdio>
#include <thread>
int payload;
std::atomic<int> stage;
int main() {
    std::thread writer([] {
        payload = 5;
        stage.store(1, std::memory_order_release);
        stage.fetch_add(1, std::memory_order_relaxed);
    });
    std::thread between([] {
        int two = 2;
        while (!stage.compare_exchange_weak(two, 3, std::memory_order_relaxed)) {
            two = 2;
            std::this_thread::yield();
        }
    });
    while (stage.load(std::memory_order_acquire) != 3)
        std::this_thread::yield();
    printf("%d\n", payload);
    writer.join();
    between.join();
}
