// All values valid: whichever worker wins, the reader goes on with a value it
// can work with, and what it prints does not depend on it.
#include <pthread.h>
#include <stdio.h>

int hint;
int sink[8];

void *adviser(void *number) {
    hint = (int)(long)number;              // RACE hint: k-witness-harmless
    return 0;
}

void *worker(void *unused) {
    int start = hint;                      // RACE hint: k-witness-harmless
    for (int i = 0; i < 8; i++)
        sink[(start + i) % 8] = i >= 0;
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, adviser, (void *)5);
    pthread_create(&two, 0, worker, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    int sum = 0;
    for (int i = 0; i < 8; i++)
        sum += sink[i];
    printf("%d slots\n", sum);
    return 0;
}
