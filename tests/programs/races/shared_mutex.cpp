#include <cstdio>
#include <mutex>
#include <shared_mutex>
#include <thread>
std::shared_mutex lock;
int table[4];
int main() {
    std::thread writer([] {
        for (int i = 0; i < 50; i++) {
            std::unique_lock<std::shared_mutex> guard(lock);
            table[i % 4]++;
        }
    });
    std::thread reader([] {
        long sum = 0;
        for (int i = 0; i < 50; i++) {
            std::shared_lock<std::shared_mutex> guard(lock);
            sum += table[i % 4];
        }
        std::printf("%d\n", sum >= 0);
    });
    writer.join();
    reader.join();
}
