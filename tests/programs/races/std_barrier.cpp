// flags: -std=c++20
#include <barrier>
#include <cstdio>
#include <thread>
static int left[8], right[8], rounds;
int main() {
    std::barrier meet(2, []() noexcept { rounds++; });
    std::thread other([&] {
        for (int i = 0; i < 8; i++) {
            left[i] = i;
            meet.arrive_and_wait();
            right[i] += left[i];
            meet.arrive_and_wait();
        }
    });
    int sum = 0;
    for (int i = 0; i < 8; i++) {
        right[i] = 0;
        meet.arrive_and_wait();
        sum += left[i];
        meet.arrive_and_wait();
        sum += right[i];
    }
    other.join();
    std::printf("%d %d\n", sum, rounds);
}
