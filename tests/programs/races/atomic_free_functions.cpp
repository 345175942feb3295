// std::atomic_load of a shared_ptr takes a lock of the library's.
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
static std::shared_ptr<int> current = std::make_shared<int>(1);
int main() {
    std::thread writer([] {
        for (int i = 2; i < 20; i++)
            std::atomic_store(&current, std::make_shared<int>(i));
    });
    int last = 0;
    for (int i = 0; i < 20; i++)
        last = *std::atomic_load(&current);
    writer.join();
    std::printf("%d\n", last > 0);
}
