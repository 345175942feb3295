#include <cstdio>
#include <memory>
#include <thread>
int main() {
    auto owner = std::make_shared<int>(5);
    std::weak_ptr<int> watcher = owner;
    int seen = 0;
    std::thread other([&seen, watcher] {
        if (auto held = watcher.lock())
            seen = *held;
    });
    owner.reset();
    other.join();
    std::printf("%d\n", seen >= 0);
}
