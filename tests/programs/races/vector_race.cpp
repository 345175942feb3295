#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>
std::vector<int> values(64);
static void worker() {
    for (int i = 0; i < 64; i++)
        values.data()[i] += i; // RACE values
}
int main() {
    std::thread one(worker), two(worker);
    one.join();
    two.join();
    std::printf("%d\n", values[5] > 0);
}
