// SILENT
// Thread-local variables whose addresses leave their threads, in the memory that
// the next thread gets for its own.
#include <thread>
#include <atomic>
static thread_local long count;
static thread_local long list[64];
static std::atomic<int> running;
__attribute__((noinline)) static void keep(long *at) { __asm__ volatile("" : : "r"(at) : "memory"); }
static void work() {
    keep(&count);
    keep(list);
    for (int i = 0; i < 100; i++)
        count += list[i % 64] += i;
    running--;
}
int main() {
    for (int i = 0; i < 200; i++) {
        std::thread joined(work);
        running += 3;
        std::thread(work).detach();
        std::thread(work).detach();
        joined.join();
        while (running)
            std::this_thread::yield();
    }
}
