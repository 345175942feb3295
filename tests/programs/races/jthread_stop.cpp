// flags: -std=c++20
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <stop_token>
#include <thread>
static int before, worked;
int main() {
    std::mutex m;
    std::condition_variable_any changed;
    before = 4;
    {
        std::jthread worker([&](std::stop_token stop) {
            std::unique_lock lock(m);
            changed.wait(lock, stop, [] { return false; });
            worked = before + 1;
        });
        worker.request_stop();
    }
    std::printf("%d\n", worked);
}
