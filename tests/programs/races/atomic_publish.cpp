#include <atomic>
#include <cstdio>
#include <thread>
int payload;
std::atomic<bool> ready{false};
int main() {
    std::thread writer([] {
        payload = 11;
        ready.store(true, std::memory_order_release);
    });
    std::thread reader([] {
        while (!ready.load(std::memory_order_acquire))
            std::this_thread::yield();
        std::printf("%d\n", payload);
    });
    writer.join();
    reader.join();
}
