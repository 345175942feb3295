#include <cstdio>
#include <future>
#include <vector>
int main() {
    std::vector<int> data(100, 2);
    auto half = [&](int from) {
        return std::async(std::launch::async, [&data, from] {
            int sum = 0;
            for (int i = from; i < from + 50; i++)
                sum += data[i];
            return sum;
        });
    };
    auto one = half(0), two = half(50);
    std::printf("%d\n", one.get() + two.get());
}
