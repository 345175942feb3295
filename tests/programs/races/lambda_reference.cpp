#include <cstdio>
#include <thread>
int main() {
    int local = 0;
    std::thread other([&] { local = 1; }); // RACE local
    local = 2; // RACE local
    other.join();
    std::printf("%d\n", local);
}
