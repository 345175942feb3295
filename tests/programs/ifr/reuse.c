// SILENT
// Memory that changes owner through the allocator alone.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static void *work(void *p) {
    for (int i = 0; i < 40000; i++) {
        size_t n = 16 + i % 700; char *b = malloc(n); memset(b, i, n);
        for (size_t k = 0; k < n; k += 5) b[k]++;
        if (i % 3 == 0) b = realloc(b, n * 2);
        free(b);
    }
    return p;
}
int main(void) {
    pthread_t t[3];
    for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, work, 0);
    for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
    for (int r = 0; r < 40; r++) { pthread_create(&t[0], 0, work, 0); pthread_create(&t[1], 0, work, 0); pthread_join(t[0], 0); pthread_join(t[1], 0); if (r == 1) break; }
    return 0;
}
