// RACE counter
// Another program takes this one's place: the races are told before.
#include <pthread.h>
#include <unistd.h>
long counter;
static __attribute__((noinline)) void add(void) { counter++; }
static void *work(void *p) { for (int i = 0; i < 2000000; i++) add(); return p; }
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, work, 0);
    work(0);
    pthread_join(t, 0);
    char *arguments[] = { "false", 0 };
    execv("/bin/false", arguments);
    return 0;
}
