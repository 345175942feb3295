// The reader holds on to a name that is replaced and given back.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>
#include <string.h>

static char *name;
static int wrong;

static void *reader(void *unused) {
    (void)unused;
    work(200);
    char *mine = name;               // DECIDES
    if (strcmp(mine, "old") && strcmp(mine, "new"))  // DECIDES
        wrong = 1;
    return 0;
}

static void *renamer(void *unused) {
    (void)unused;
    work(220);
    char *old = name;
    name = strdup("new");       // DECIDES
    memset(old, 'x', 3);        // DECIDES
    free(old);                  // DECIDES
    return 0;
}

int main(void) {
    name = strdup("old");
    pthread_t threads[2];
    pthread_create(&threads[0], 0, reader, 0);
    pthread_create(&threads[1], 0, renamer, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    free(name);
    return wrong;
}
