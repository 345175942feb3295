// How much is copied is read while another thread writes it: more than the
// buffer holds, and the function returns to what was copied.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

int length = 16;
char message[64] = "sixteen bytes..., and forty-eight that do not belong there.....";

static void receive(void) {
    char buffer[16];
    memcpy(buffer, message, length);    // RACE length: spec-violated crash return-address-overwritten
}

void *reader(void *unused) {
    receive();
    return 0;
}

void *other(void *unused) {
    length = 64;                        // RACE length: spec-violated crash return-address-overwritten
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, reader, 0);
    pthread_create(&two, 0, other, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return 0;
}
