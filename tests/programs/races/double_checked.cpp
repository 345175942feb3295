#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>
struct Table {
    int rows = 3;
};
static std::atomic<Table *> table{nullptr};
static std::mutex lock;
static Table *get() {
    Table *known = table.load(std::memory_order_acquire);
    if (!known) {
        std::lock_guard<std::mutex> guard(lock);
        known = table.load(std::memory_order_relaxed);
        if (!known) {
            known = new Table;
            table.store(known, std::memory_order_release);
        }
    }
    return known;
}
int main() {
    std::thread one([] { get(); }), two([] { get(); });
    one.join();
    two.join();
    std::printf("%d\n", get()->rows);
}
