// setjmp and longjmp out of deep calls, in several threads.
// identity: output as natively
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>

static __thread jmp_buf back;
static __thread int depth;

static int dive(int n) {
    volatile int here = n;
    depth++;
    if (n == 0)
        longjmp(back, 1000 + depth);
    int result = dive(n - 1);
    return result + here;
}

static void *work(void *argument) {
    long sum = 0;
    for (volatile int i = 0; i < 30; i++) {
        depth = 0;
        int code = setjmp(back);
        if (code == 0)
            dive(i + (int)(long)argument);
        else
            sum += code;
    }
    return (void *)sum;
}

int main(void) {
    pthread_t threads[2];
    void *sums[2];
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], &sums[i]);
    printf("%ld %ld\n", (long)sums[0], (long)sums[1]);
    return 0;
}
