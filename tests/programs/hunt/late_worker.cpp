// A pool that is taken down when its work seems done: the counter is down
// before the last worker has written to the log, which is gone by then.
// HUNT fails: signal 6
#include "work.h"
#include <cstdlib>
#include <mutex>
#include <thread>

static const int OPEN = 0x10906, CLOSED = 0xdead;

struct Log {
    int state = OPEN;
    int lines = 0;
    ~Log() { *(volatile int *)&state = CLOSED; }  // DECIDES
    void line() {
        if (*(volatile int *)&state != OPEN)  // DECIDES
            abort();
        lines++;
    }
};

static std::mutex lock;
static int left = 2;
static Log *log_file;

static void worker() {
    work(150);
    {
        std::lock_guard<std::mutex> guard(lock);
        left--;
    }
    log_file->line();  // DECIDES
}

static bool busy() {
    std::lock_guard<std::mutex> guard(lock);
    return left > 0;
}

int main() {
    log_file = new Log;
    std::thread one(worker), other(worker);
    while (busy())
        std::this_thread::yield();
    work(100);
    delete log_file;  // DECIDES
    one.join();
    other.join();
    return 0;
}
