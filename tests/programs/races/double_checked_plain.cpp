#include <cstdio>
#include <mutex>
#include <thread>
struct Table {
    int rows;
};
static Table *table;
static std::mutex lock;
static Table *get() {
    if (!table) { // RACE table
        std::lock_guard<std::mutex> guard(lock);
        if (!table)
            table = new Table{3}; // RACE table
    }
    return table;
}
int main() {
    auto work = [] {
        for (int i = 0; i < 50; i++)
            get();
    };
    std::thread one(work), two(work);
    one.join();
    two.join();
    std::printf("%d\n", get()->rows);
}
