// A home-made once: both threads find nothing made.
// HUNT fails: exit 1
#include "work.h"
#include <atomic>
#include <thread>

struct Service {
    static std::atomic<int> instances;
    Service() { instances++; }
};

std::atomic<int> Service::instances;
static Service *service;

static void use() {
    work(200);
    if (!service)                 // DECIDES
        service = new Service();  // DECIDES
}

int main() {
    std::thread one(use), other(use);
    one.join();
    other.join();
    int made = Service::instances;
    delete service;
    return made != 1;
}
