#include <cstdio>
#include <future>
#include <thread>
int main() {
    std::promise<int> promise;
    int beside = 0;
    auto future = promise.get_future();
    std::thread other([&] {
        beside = 4;
        promise.set_value(3);
    });
    int sum = future.get() + beside;
    other.join();
    std::printf("%d\n", sum);
}
