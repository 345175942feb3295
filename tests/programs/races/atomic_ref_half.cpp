// flags: -std=c++20
// One of them forgets the reference.
#include <atomic>
#include <cstdio>
#include <thread>
static int count;
int main() {
    std::thread a([] {
        for (int i = 0; i < 100; i++)
            std::atomic_ref<int>(count).fetch_add(1); // RACE count
    });
    for (int i = 0; i < 100; i++)
        count++; // RACE count
    a.join();
    std::printf("%d\n", count);
}
