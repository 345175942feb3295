// A plain change on a line that also has an atomic operation is plain.
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
struct Counts {
    long plain = 0;
    std::atomic<long> exact{0};
};
static void count(Counts *counts) {
    for (int i = 0; i < 200; i++) { counts->plain += 1; counts->exact.fetch_add(1, std::memory_order_relaxed); } // RACE plain
}
int main() {
    auto counts = std::make_unique<Counts>();
    std::thread one(count, counts.get()), other(count, counts.get());
    one.join();
    other.join();
    printf("%ld\n", counts->plain);
}
