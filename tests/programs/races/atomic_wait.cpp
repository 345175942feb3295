// flags: -std=c++20
#include <atomic>
#include <cstdio>
#include <thread>
static std::atomic<int> stage{0};
static int value;
int main() {
    std::thread other([] {
        stage.wait(0, std::memory_order_acquire);
        value++;
        stage.store(2, std::memory_order_release);
        stage.notify_one();
    });
    value = 1;
    stage.store(1, std::memory_order_release);
    stage.notify_one();
    stage.wait(1, std::memory_order_acquire);
    std::printf("%d\n", value);
    other.join();
}
