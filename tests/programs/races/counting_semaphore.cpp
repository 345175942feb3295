// flags: -std=c++20
#include <cstdio>
#include <semaphore>
#include <thread>
static int ring[4];
static std::counting_semaphore<4> room(4), filled(0);
int main() {
    std::thread producer([] {
        for (int i = 0; i < 40; i++) {
            room.acquire();
            ring[i % 4] = i;
            filled.release();
        }
    });
    int sum = 0;
    for (int i = 0; i < 40; i++) {
        filled.acquire();
        sum += ring[i % 4];
        room.release();
    }
    producer.join();
    std::printf("%d\n", sum);
}
