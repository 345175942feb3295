// std::async, jthread with stop tokens, latch, semaphore, exceptions across
// futures.
#include <future>
#include <iostream>
#include <latch>
#include <numeric>
#include <semaphore>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>
int main() {
    std::vector<std::future<long>> parts;
    for (int i = 0; i < 16; i++)
        parts.push_back(std::async(std::launch::async, [i] {
            std::vector<long> v(2000);
            std::iota(v.begin(), v.end(), i);
            return std::accumulate(v.begin(), v.end(), 0L);
        }));
    long total = 0;
    for (auto &part : parts)
        total += part.get();
    auto bad = std::async(std::launch::async, []() -> int { throw std::runtime_error("thrown there"); });
    std::string what;
    try {
        bad.get();
    } catch (std::exception &e) {
        what = e.what();
    }
    std::latch ready(4);
    std::counting_semaphore<4> room(2);
    std::atomic<int> inside{0}, most{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 4; i++)
            threads.emplace_back([&](std::stop_token token) {
                ready.arrive_and_wait();
                room.acquire();
                int now = ++inside;
                while (most < now)
                    most = now;
                --inside;
                room.release();
                while (!token.stop_requested())
                    std::this_thread::yield();
            });
        ready.wait();
    }
    std::cout << total << ' ' << what << ' ' << (most <= 2) << '\n';
}
