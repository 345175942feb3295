// flags: -std=c++20
// The latch counts one thread too few.
#include <cstdio>
#include <latch>
#include <thread>
static int part, other;
int main() {
    std::latch ready(1);
    std::thread one([&] {
        part = 1;
        ready.count_down();
    });
    std::thread two([&] {
        other = 2; // RACE other
    });
    ready.wait();
    std::printf("%d\n", part + other); // RACE other
    one.join();
    two.join();
}
