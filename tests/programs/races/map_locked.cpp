#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <thread>
static std::map<std::string, int> counts;
static std::mutex lock;
static void add(int from) {
    for (int i = from; i < from + 30; i++) {
        std::lock_guard<std::mutex> guard(lock);
        counts[std::to_string(i % 40)]++;
    }
}
int main() {
    std::thread one(add, 0), two(add, 20);
    one.join();
    two.join();
    std::printf("%zu\n", counts.size());
}
