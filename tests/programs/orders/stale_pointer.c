// ORDERS harmful
// A reader may keep the pointer to the configuration that is being replaced.
#include <pthread.h>
#include <stdio.h>

struct configuration {
    long generation;
};

static struct configuration versions[200];
static struct configuration *volatile current = &versions[0];

static void *reader(void *unused) {
    long last = 0;
    for (int i = 0; i < 200; i++) {
        struct configuration *seen = current; // RACE
        last += seen->generation;
    }
    return (void *)last;
}

static void *writer(void *unused) {
    for (int i = 1; i < 200; i++) current = &versions[i]; // RACE
    return unused;
}

int main(void) {
    pthread_t one, two;
    for (int i = 0; i < 200; i++) versions[i].generation = i;
    pthread_create(&one, NULL, reader, NULL);
    pthread_create(&two, NULL, writer, NULL);
    void *last;
    pthread_join(one, &last);
    pthread_join(two, NULL);
    printf("%ld\n", (long)last);
    return 0;
}
