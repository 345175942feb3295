// A cache that is asked under one lock and filled under the next.
// HUNT fails: exit 1
#include "work.h"
#include <mutex>
#include <thread>

static std::mutex lock;
static int cached = -1;
static int made;

static int find() {
    std::lock_guard<std::mutex> guard(lock);
    return cached;  // DECIDES
}

static void store(int value) {
    std::lock_guard<std::mutex> guard(lock);
    cached = value;  // DECIDES
    made++;          // DECIDES
}

static void use() {
    work(200);
    if (find() < 0)
        store(17);
}

int main() {
    std::thread one(use), other(use);
    one.join();
    other.join();
    return made != 1;
}
