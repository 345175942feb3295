// What daemons do: another file in place of a descriptor that may be in use.
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
static int descriptor;
static void *reader(void *unused) {
    char byte;
    if (read(descriptor, &byte, 1) < 0)
        return 0;
    return unused;
}
int main(void) {
    descriptor = open("/dev/zero", O_RDONLY);
    int other = open("/dev/null", O_RDONLY);
    pthread_t thread;
    pthread_create(&thread, 0, reader, 0);
    dup2(other, descriptor);
    pthread_join(thread, 0);
    close(descriptor);
    close(other);
}
