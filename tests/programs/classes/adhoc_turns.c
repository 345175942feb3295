// Ad hoc synchronisation: two threads take turns by a plain number.
#include <pthread.h>
#include <stdio.h>

volatile int turn;
int score;

void *player(void *number) {
    int own = (int)(long)number;
    for (int i = 0; i < 3; i++) {
        while (turn % 2 != own) {}         // RACE turn: k-witness-harmless
        score += own + 1;                  // RACE score: single-ordering
        turn++;                            // RACE turn: k-witness-harmless
    }
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, player, (void *)0);
    pthread_create(&two, 0, player, (void *)1);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%d\n", score);
    return 0;
}
