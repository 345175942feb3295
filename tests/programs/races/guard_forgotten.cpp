#include <cstdio>
#include <mutex>
#include <thread>
std::mutex lock;
long counter;
static void careful() {
    for (int i = 0; i < 100; i++) {
        std::lock_guard<std::mutex> guard(lock);
        counter++; // RACE counter
    }
}
static void careless() {
    for (int i = 0; i < 100; i++)
        counter++; // RACE counter
}
int main() {
    std::thread one(careful), two(careless);
    one.join();
    two.join();
    std::printf("%d\n", counter > 0);
}
