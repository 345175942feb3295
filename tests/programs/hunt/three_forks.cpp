// Three at a round table, each takes the fork to the left and then the one to
// the right: all three have to hold their first.
// HUNT fails: deadlock
#include "work.h"
#include <mutex>
#include <thread>
#include <vector>

static std::mutex forks[3];
static int eaten[3];

static void dine(int seat) {
    work(200);
    forks[seat].lock();
    forks[(seat + 1) % 3].lock();  // DECIDES
    eaten[seat]++;
    forks[(seat + 1) % 3].unlock();
    forks[seat].unlock();
}

int main() {
    std::vector<std::thread> guests;
    for (int seat = 0; seat < 3; seat++)
        guests.emplace_back(dine, seat);
    for (auto &guest : guests)
        guest.join();
    return eaten[0] + eaten[1] + eaten[2] == 3 ? 0 : 2;
}
