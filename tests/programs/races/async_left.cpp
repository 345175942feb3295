// The task is under way while its result is not asked for.
#include <cstdio>
#include <future>
static int side;
int main() {
    auto task = std::async(std::launch::async, [] { side++; }); // RACE side
    side++; // RACE side
    task.get();
    std::printf("%d\n", side);
}
