#include "two.h"
int *mail;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *sender(void *arg) {
    for (int sent = 0; sent < 20;) {
        int *letter = malloc(32);
        letter[0] = sent;
        pthread_mutex_lock(&lock);
        if (!mail) {
            mail = letter;
            sent++;
            letter = 0;
        }
        pthread_mutex_unlock(&lock);
        free(letter);
        sched_yield();
    }
    return arg;
}
static void *receiver(void *arg) {
    long sum = 0;
    for (int got = 0; got < 20;) {
        pthread_mutex_lock(&lock);
        int *letter = mail;
        mail = 0;
        pthread_mutex_unlock(&lock);
        if (letter) {
            sum += letter[0];
            free(letter);
            got++;
        }
        sched_yield();
    }
    printf("%ld\n", sum);
    return arg;
}
int main(void) {
    run(sender, receiver);
    return 0;
}
