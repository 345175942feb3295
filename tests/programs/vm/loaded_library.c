// dlopen, dlsym and dlclose, from two threads.
// identity: output as natively
// flags: -ldl
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static void *work(void *unused) {
    (void)unused;
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        if (!library)
            return NULL;
        double (*power)(double, double) = (double (*)(double, double))dlsym(library, "pow");
        sum += power(1.5, i + 2);
        dlclose(library);
    }
    return (void *)(long)(sum * 1000);
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    void *here = work(NULL), *there;
    pthread_join(thread, &there);
    printf("%ld %ld\n", (long)here, (long)there);
    return 0;
}
