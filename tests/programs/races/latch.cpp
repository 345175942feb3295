// flags: -std=c++20
#include <cstdio>
#include <latch>
#include <thread>
#include <vector>
static int parts[4];
int main() {
    std::latch ready(4);
    std::vector<std::thread> crew;
    for (int i = 0; i < 4; i++)
        crew.emplace_back([&, i] {
            parts[i] = i + 1;
            ready.count_down();
        });
    ready.wait();
    int sum = 0;
    for (int part : parts)
        sum += part;
    std::printf("%d\n", sum);
    for (auto &t : crew)
        t.join();
}
