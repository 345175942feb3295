// Exceptions thrown and caught across frames and handed across threads.
// identity: output as natively
#include <cstdio>
#include <exception>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

struct Guard {
    long &count;
    ~Guard() { count++; }
};

static long dive(int depth, long &unwound) {
    Guard guard{unwound};
    if (depth == 0)
        throw std::runtime_error("bottom");
    return dive(depth - 1, unwound) + 1;
}

int main() {
    std::vector<std::future<long>> results;
    for (int i = 0; i < 3; i++) {
        results.push_back(std::async(std::launch::async, [i] {
            long unwound = 0, caught = 0;
            for (int round = 0; round < 10; round++) {
                try {
                    dive(i + round, unwound);
                } catch (const std::exception &error) {
                    caught++;
                }
            }
            if (i == 2)
                throw std::out_of_range("third");
            return unwound * 100 + caught;
        }));
    }
    long sum = 0;
    const char *what = "nothing";
    try {
        for (auto &result : results)
            sum += result.get();
    } catch (const std::out_of_range &) {
        what = "third";
    }
    std::printf("sum %ld, thrown across: %s\n", sum, what);
    return 0;
}
