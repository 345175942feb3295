// MISSED at stripped: a check of a flag looks like an acquire load there.
// One function for every order: which it is, only its caller says.
#include <atomic>
#include <cstdio>
#include <thread>
static std::atomic<bool> strong{false}, weak{false};
static int published, leaked;
static void set(std::atomic<bool> &flag, bool release) {
    if (release)
        flag.store(true, std::memory_order_release);
    else
        flag.store(true, std::memory_order_relaxed);
}
int main() {
    std::thread writer([] {
        published = 1;
        set(strong, true);
        leaked = 1; // RACE leaked
        set(weak, false);
    });
    while (!strong.load(std::memory_order_acquire))
        std::this_thread::yield();
    int sum = published;
    while (!weak.load(std::memory_order_relaxed))
        std::this_thread::yield();
    sum += leaked; // RACE leaked
    std::printf("%d\n", sum);
    writer.join();
}
