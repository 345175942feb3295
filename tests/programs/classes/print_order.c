// Lines come in any order, race or not: the race is not to blame.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

int last;

void *speak(void *number) {
    last = (int)(long)number;              // RACE last: k-witness-harmless
    for (int i = 0; i < 4; i++)
        write(1, number == (void *)1 ? "one\n" : "two\n", 4);
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, speak, (void *)1);
    pthread_create(&two, 0, speak, (void *)2);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return 0;
}
