// A waiter that asks an atomic flag before it takes the lock of the condition,
// and waits without asking again: the notice given in between wakes nobody.
// HUNT fails: hang
#include "work.h"
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

static std::mutex lock;
static std::condition_variable changed;
static std::atomic<bool> ready;

static void consumer() {
    work(100);
    if (!ready.load()) {  // DECIDES
        std::unique_lock<std::mutex> guard(lock);  // DECIDES
        changed.wait(guard);  // DECIDES
    }
}

static void producer() {
    work(300);
    ready.store(true);  // DECIDES
    changed.notify_one();
}

int main() {
    std::thread one(consumer), other(producer);
    one.join();
    other.join();
    return 0;
}
