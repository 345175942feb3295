#include <atomic>
#include <cstdio>
#include <thread>
std::atomic<unsigned> sequence{0};
std::atomic<int> low{0}, high{0};
int main() {
    std::thread writer([] {
        for (int i = 1; i < 50; i++) {
            unsigned s = sequence.load(std::memory_order_relaxed);
            sequence.store(s + 1, std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_release);
            low.store(i, std::memory_order_relaxed);
            high.store(i, std::memory_order_relaxed);
            sequence.store(s + 2, std::memory_order_release);
        }
    });
    std::thread reader([] {
        int bad = 0;
        for (int i = 0; i < 50; i++) {
            unsigned before, after;
            int a, b;
            do {
                before = sequence.load(std::memory_order_acquire);
                a = low.load(std::memory_order_relaxed);
                b = high.load(std::memory_order_relaxed);
                std::atomic_thread_fence(std::memory_order_acquire);
                after = sequence.load(std::memory_order_relaxed);
            } while (before != after || (before & 1));
            bad += a != b;
        }
        std::printf("%d\n", bad);
    });
    writer.join();
    reader.join();
}
