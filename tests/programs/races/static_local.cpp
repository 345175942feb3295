#include <cstdio>
#include <string>
#include <thread>
static const std::string &name() {
    static const std::string value(40, 'x');
    return value;
}
static void worker() {
    size_t sum = 0;
    for (int i = 0; i < 20; i++)
        sum += name().size() + name()[3];
    std::printf("%zu\n", sum);
}
int main() {
    std::thread one(worker), two(worker);
    one.join();
    two.join();
}
