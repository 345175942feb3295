#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>
static std::deque<int> queue;
static std::mutex lock;
static std::condition_variable filled;
int main() {
    std::thread producer([] {
        for (int i = 0; i < 30; i++) {
            std::lock_guard<std::mutex> guard(lock);
            queue.push_back(i);
            filled.notify_one();
        }
    });
    int sum = 0;
    for (int i = 0; i < 30; i++) {
        std::unique_lock<std::mutex> guard(lock);
        filled.wait(guard, [] { return !queue.empty(); });
        sum += queue.front();
        queue.pop_front();
    }
    producer.join();
    std::printf("%d\n", sum);
}
