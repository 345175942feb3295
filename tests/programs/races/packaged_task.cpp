#include <cstdio>
#include <future>
#include <thread>
static int side;
int main() {
    std::packaged_task<int(int)> task([](int x) {
        side = x;
        return x * 2;
    });
    std::future<int> result = task.get_future();
    std::thread runner(std::move(task), 21);
    int got = result.get();
    std::printf("%d %d\n", got, side);
    runner.join();
    auto shared = std::async(std::launch::async, [] { return ++side; }).share();
    std::thread a([=] { shared.wait(); }), b([=] { shared.wait(); });
    a.join();
    b.join();
    std::printf("%d\n", shared.get() + side);
}
