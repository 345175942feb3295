// ORDERS harmful
// LABEL statistics-counter
#include <cstdio>
#include <thread>

struct Statistics {
    long hits = 0;
};

static Statistics statistics;

static void work() {
    for (int i = 0; i < 200; i++) statistics.hits++; // RACE
}

int main() {
    std::thread one(work), two(work);
    one.join();
    two.join();
    std::printf("%ld\n", statistics.hits);
}
