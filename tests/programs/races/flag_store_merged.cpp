// flags: -std=c++20
// The compiler may make a plain store of a change whose result nobody uses.
#include <atomic>
#include <cstdio>
#include <thread>
int main() {
    std::atomic_flag done;
    int data = 0;
    std::thread worker([&] { data = 3; done.test_and_set(std::memory_order_release); done.notify_one(); });
    done.wait(false, std::memory_order_acquire);
    std::printf("%d\n", data);
    worker.join();
}
