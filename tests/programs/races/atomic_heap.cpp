// Atomics inside an object on the heap.
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
struct Cell {
    int value = 0;
    std::atomic<int> state{0};
};
int main() {
    auto cell = std::make_unique<Cell>();
    std::thread writer([&] {
        cell->value = 5;
        cell->state.store(1, std::memory_order_release);
    });
    std::thread reader([&] {
        while (cell->state.load(std::memory_order_acquire) == 0)
            std::this_thread::yield();
        std::printf("%d\n", cell->value);
    });
    writer.join();
    reader.join();
}
