// The same in C++, where wrappers lie between the line and the lock.
#include <cstdio>
#include <mutex>
#include <thread>

static std::mutex lock, other;
static int balance = 10;

static void take() {
    for (int i = 0; i < 10; i++) {
        std::lock_guard<std::mutex> guard(lock);  // REMOVE: needed
        if (balance > 0)
            balance--;
    }
}

int main() {
    std::thread one(take), two(take);
    one.join();
    two.join();
    std::lock_guard<std::mutex> guard(other);  // REMOVE: no-harm
    std::printf("%d\n", balance);
}
