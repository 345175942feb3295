// flags: -std=c++20
// A stop that was asked for has not been obeyed yet.
#include <cstdio>
#include <stop_token>
#include <thread>
static int worked;
int main() {
    std::jthread worker([](std::stop_token stop) {
        while (!stop.stop_requested())
            worked++; // RACE worked
    });
    std::this_thread::yield();
    worker.request_stop();
    std::printf("%d\n", worked > 0); // RACE worked
}
