#include <cstdio>
#include <memory>
#include <thread>
#include <vector>
int main() {
    auto shared = std::make_shared<std::vector<int>>(100, 3);
    std::vector<std::thread> threads;
    long sums[4] = {};
    for (int i = 0; i < 4; i++)
        threads.emplace_back([shared, &sums, i] {
            auto mine = shared;
            for (int value : *mine)
                sums[i] += value;
        });
    shared.reset();
    for (auto &thread : threads)
        thread.join();
    std::printf("%ld\n", sums[0] + sums[3]);
}
