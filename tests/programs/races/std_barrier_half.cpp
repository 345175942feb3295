// flags: -std=c++20
// Arriving is not waiting.
#include <barrier>
#include <cstdio>
#include <thread>
static int value;
int main() {
    std::barrier meet(2);
    std::thread other([&] {
        (void)meet.arrive();
        value = 7; // RACE value
    });
    meet.arrive_and_wait();
    std::printf("%d\n", value); // RACE value
    other.join();
}
