#include <cstdio>
#include <future>
#include <vector>
int main() {
    std::vector<int> data(100, 2);
    auto sum = std::async(std::launch::async, [&data] {
        long total = 0;
        for (int value : data)
            total += value;
        return total;
    });
    std::promise<int> promise;
    auto answer = promise.get_future();
    std::thread setter([&promise] { promise.set_value(42); });
    std::printf("%d\n", answer.get());
    std::printf("%ld\n", sum.get());
    data[0] = 1;
    setter.join();
}
