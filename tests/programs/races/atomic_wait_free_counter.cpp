#include <atomic>
#include <cstdio>
#include <thread>
static std::atomic<int> count{0};
int main() {
    auto add = [] {
        for (int i = 0; i < 100; i++)
            count.fetch_add(1, std::memory_order_relaxed);
    };
    std::thread one(add), two(add);
    one.join();
    two.join();
    std::printf("%d\n", count.load());
}
