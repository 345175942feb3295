// MISSED at stripped: nothing tells a plain access from an atomic one there.
#include <atomic>
#include <cstdio>
#include <thread>
// Two threads take turns to own the slot, but one forgets to wait. So many
// turns that no schedule runs all of one thread first.
static std::atomic<bool> full{false};
static int slot;
int main() {
    std::thread producer([] {
        for (int i = 0; i < 2000; i++) {
            slot = i; // RACE slot
            full.store(true, std::memory_order_release);
        }
    });
    for (int i = 0; i < 2000; i++) {
        while (!full.exchange(false, std::memory_order_acquire))
            if (i)
                break;
        int seen = slot; // RACE slot
        if (seen < 0)
            std::puts("never");
    }
    producer.join();
}
