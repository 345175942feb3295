#include <cstdio>
#include <memory>
#include <thread>
struct Plain {
    int *pointer;
};
Plain current{new int(1)};
int main() {
    std::thread setter([] {
        for (int i = 0; i < 20; i++)
            current.pointer = new int(i); // RACE pointer
    });
    std::thread getter([] {
        long sum = 0;
        for (int i = 0; i < 20; i++)
            sum += current.pointer != nullptr; // RACE pointer
        std::printf("%ld\n", sum);
    });
    setter.join();
    getter.join();
}
