#include <atomic>
#include <cstdio>
#include <thread>
std::atomic_flag held = ATOMIC_FLAG_INIT;
long counter;
static void worker() {
    for (int i = 0; i < 100; i++) {
        while (held.test_and_set(std::memory_order_acquire))
            std::this_thread::yield();
        counter++;
        held.clear(std::memory_order_release);
    }
}
int main() {
    std::thread one(worker), two(worker);
    one.join();
    two.join();
    std::printf("%ld\n", counter);
}
