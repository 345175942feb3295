// Nothing is printed, but the exit code tells.
#include <pthread.h>

int code;

void *run(void *number) {
    code = (int)(long)number;              // RACE code: output-differs output
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, run, (void *)3);
    pthread_create(&two, 0, run, (void *)4);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return code;
}
