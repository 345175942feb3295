// Two threads may both find the buffer there, and both free it (paper 003,
// figure 14 a). The block is large: what is freed is gone, and the second
// `free` crashes. Where both get through all the same, both store null: the
// harm is done by then, and which of the two comes first makes no difference.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

char *buffer;

void *finish(void *unused) {
    char *mine = buffer;                   // RACE block: spec-violated crash|memory-error
    if (mine) {
        free(mine);
        buffer = 0;                        // RACE block: spec-violated crash|memory-error RACE both: k-witness-harmless
    }
    return 0;
}

int main(void) {
    pthread_t one, two;
    buffer = malloc(400000);
    pthread_create(&one, 0, finish, 0);
    pthread_create(&two, 0, finish, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("freed\n");
    return 0;
}
