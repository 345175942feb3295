#include <chrono>
#include <cstdio>
#include <mutex>
#include <shared_mutex>
#include <thread>
static std::recursive_timed_mutex outer;
static std::shared_timed_mutex table;
static int a, b;
static void step(int depth) {
    std::unique_lock<std::recursive_timed_mutex> lock(outer, std::chrono::seconds(5));
    a++;
    if (depth)
        step(depth - 1);
}
int main() {
    std::thread one([] {
        for (int i = 0; i < 20; i++) {
            step(2);
            std::unique_lock<std::shared_timed_mutex> write(table);
            b++;
        }
    });
    int seen = 0;
    for (int i = 0; i < 20; i++) {
        step(1);
        std::shared_lock<std::shared_timed_mutex> read(table, std::chrono::seconds(5));
        seen += b;
    }
    one.join();
    std::printf("%d %d %d\n", a, b, seen >= 0);
}
