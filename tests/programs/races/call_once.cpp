#include <cstdio>
#include <mutex>
#include <thread>
std::once_flag flag;
int table[16];
static void fill() {
    for (int i = 0; i < 16; i++)
        table[i] = i;
}
static void worker() {
    std::call_once(flag, fill);
    long sum = 0;
    for (int value : table)
        sum += value;
    std::printf("%ld\n", sum);
}
int main() {
    std::thread one(worker), two(worker);
    one.join();
    two.join();
}
