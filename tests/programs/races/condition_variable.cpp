#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <queue>
#include <thread>
std::mutex lock;
std::condition_variable changed;
std::queue<int> queue;
int main() {
    std::thread producer([] {
        for (int i = 0; i < 50; i++) {
            std::lock_guard<std::mutex> guard(lock);
            queue.push(i);
            changed.notify_one();
        }
    });
    std::thread consumer([] {
        long sum = 0;
        for (int i = 0; i < 50; i++) {
            std::unique_lock<std::mutex> guard(lock);
            changed.wait(guard, [] { return !queue.empty(); });
            sum += queue.front();
            queue.pop();
        }
        std::printf("%ld\n", sum);
    });
    producer.join();
    consumer.join();
}
