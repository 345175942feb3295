// As lock_hides, but the accesses are in the C library: the line that is named
// only calls memcpy and strlen.
// CANDIDATE: store measure
// UNSTEERED: never
// STEERED: happens
// CFLAGS: -fno-builtin
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char name[64] = "nobody";
static int passes;

static void pass(void) {
    pthread_mutex_lock(&lock);
    passes++;
    pthread_mutex_unlock(&lock);
}

static void *namer(void *nothing) {
    memcpy(name, "somebody", 9); // RACE store
    pass();
    return nothing;
}

static void *reader(void *nothing) {
    usleep(300000);
    pass();
    size_t length = strlen(name); // RACE measure
    printf("%zu letters\n", length);
    return nothing;
}

int main(void) {
    pthread_t one, other;
    pthread_create(&one, NULL, namer, NULL);
    pthread_create(&other, NULL, reader, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    return 0;
}
