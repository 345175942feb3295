#include <cstdio>
#include <mutex>
#include <thread>
std::mutex lock;
long counter;
static void worker() {
    for (int i = 0; i < 100; i++) {
        std::lock_guard<std::mutex> guard(lock);
        counter++;
    }
}
int main() {
    std::thread one(worker), two(worker);
    one.join();
    two.join();
    std::printf("%ld\n", counter);
}
