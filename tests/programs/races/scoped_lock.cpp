#include <cstdio>
#include <mutex>
#include <thread>
static std::mutex left, right;
static int a, b;
int main() {
    std::thread one([] {
        for (int i = 0; i < 40; i++) {
            std::scoped_lock both(left, right);
            a++, b--;
        }
    });
    for (int i = 0; i < 40; i++) {
        std::scoped_lock both(right, left);
        a--, b++;
    }
    one.join();
    std::printf("%d\n", a + b);
}
