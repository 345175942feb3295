// flags: -std=c++20
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
struct Table {
    int a = 0, b = 0;
};
static std::atomic<std::shared_ptr<const Table>> current{std::make_shared<Table>()};
int main() {
    std::thread writer([] {
        for (int i = 1; i <= 20; i++) {
            auto next = std::make_shared<Table>();
            next->a = next->b = i;
            current.store(next);
        }
    });
    int wrong = 0;
    for (int i = 0; i < 20; i++) {
        auto now = current.load();
        wrong += now->a != now->b;
    }
    writer.join();
    std::printf("%d\n", wrong);
}
