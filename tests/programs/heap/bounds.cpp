// LEVELS 0 2
// An array of a class, by a member of the global object; in a frame with an
// object.
#include <cstdio>
#include <pthread.h>

namespace shop {
struct Shelf {
    short goods[16];
};
Shelf shelf;
long sold[64];
}

int place = 3;

void *keeper(void *) {
    shop::shelf.goods[place]++;     // RACE place: spec-violated memory-error out-of-bounds
    return nullptr;
}

void *other(void *) {
    place = 100;                    // RACE place: spec-violated memory-error out-of-bounds
    return nullptr;
}

int main() {
    pthread_t one, two;
    pthread_create(&one, nullptr, keeper, nullptr);
    pthread_create(&two, nullptr, other, nullptr);
    pthread_join(one, nullptr);
    pthread_join(two, nullptr);
    std::puts("done");
    return (int)shop::sold[0];
}
