// MISSED at stripped: nothing tells the order of an exchange there.
// MISSED at O2: inlined, nothing says whether the exchange succeeded.
// A compare-and-exchange that fails is a load of its second order: relaxed
// orders nothing.
#include <atomic>
#include <cstdio>
#include <thread>
static std::atomic<int *> slot{nullptr};
int main() {
    std::thread writer([] {
        int *fresh = new int;
        *fresh = 42; // RACE value
        slot.store(fresh, std::memory_order_release);
    });
    int *seen = nullptr;
    while (seen == nullptr) {
        slot.compare_exchange_weak(seen, nullptr, std::memory_order_acq_rel,
                                   std::memory_order_relaxed);
        std::this_thread::yield();
    }
    *seen += 1; // RACE value
    std::printf("%d\n", *seen); // RACE value
    writer.join();
}
