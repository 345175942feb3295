// flags: -std=c++20
// A semaphore that lets two in guards nothing.
#include <cstdio>
#include <semaphore>
#include <thread>
static std::counting_semaphore<2> gate(2);
static int count;
static void add() {
    for (int i = 0; i < 100; i++) {
        gate.acquire();
        count++; // RACE count
        gate.release();
    }
}
int main() {
    std::thread a(add), b(add);
    a.join();
    b.join();
    std::printf("%d\n", count);
}
