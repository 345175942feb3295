// MISSED at stripped: nothing tells the order of an exchange there.
// An exchange that only acquires publishes nothing.
#include <atomic>
#include <cstdio>
#include <thread>
static std::atomic<int> ready{0};
static int payload;
int main() {
    std::thread writer([] {
        payload = 5; // RACE payload
        ready.exchange(1, std::memory_order_acquire);
    });
    while (!ready.load(std::memory_order_acquire))
        std::this_thread::yield();
    std::printf("%d\n", payload); // RACE payload
    writer.join();
}
