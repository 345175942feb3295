// Code written through one mapping and run through another: memfd, file, shared
// anonymous and System V memory; by stores and by system calls; mappings that come
// later, move, and overlap in part.
// identity: output as natively
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int function(void);
enum { PAGE = 4096, RW = PROT_READ | PROT_WRITE, RX = PROT_READ | PROT_EXEC };

// mov eax, value; ret
static void make(unsigned char *code, int value) {
    code[0] = 0xb8;
    memcpy(code + 1, &value, 4);
    code[5] = 0xc3;
}

static void emit(unsigned char *at, int value) {
    at[0] = 0xb8;
    *(volatile int *)(at + 1) = value;
    at[5] = 0xc3;
}

static int call(unsigned char *at) { return ((function *)at)(); }

static unsigned char *map(size_t length, int protection, int fd, off_t offset) {
    unsigned char *at = mmap(NULL, length, protection, MAP_SHARED, fd, offset);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

static long rewrite(unsigned char *w, unsigned char *x, int times) {
    long sum = 0;
    for (int i = 0; i < times; i++) {
        emit(w, i);
        sum += call(x);
    }
    return sum;
}

static int object(size_t length) {
    int fd = memfd_create("code", 0);
    if (fd < 0 || ftruncate(fd, length))
        exit(1);
    return fd;
}

static void orders(void) {
    int fd = object(3 * PAGE);
    unsigned char *w = map(3 * PAGE, RW, fd, 0), *x = map(3 * PAGE, RX, fd, 0);
    printf("writer first: %ld\n", rewrite(w, x, 300));
    printf("across a border: %ld\n", rewrite(w + PAGE - 3, x + PAGE - 3, 100));
    unsigned char *tail = map(PAGE, RW, fd, PAGE);
    printf("a writer of a part: %ld\n", rewrite(tail + 40, x + PAGE + 40, 100));
    unsigned char *late = map(2 * PAGE, RX, fd, PAGE);
    printf("a runner that comes later: %ld\n", rewrite(w + PAGE + 80, late + 80, 100));
    call(x);
    unsigned char *second = map(PAGE, RW, fd, 0);
    printf("a writer that comes later: %ld\n", rewrite(second, x, 100));
    unsigned char *third = map(PAGE, PROT_READ, fd, 0);
    call(x);
    printf("mprotect: %d\n", mprotect(third, PAGE, RW));
    printf("one that may write later: %ld\n", rewrite(third, x, 100));
    munmap(w, 3 * PAGE);
    printf("without the first: %ld\n", rewrite(second, x, 100));
    unsigned char *both = map(PAGE, RW | RX, fd, 0);
    printf("runs its own: %ld, and the other's: %ld\n", rewrite(both, both, 100),
           rewrite(second, both, 100));
}

static void moves(void) {
    int fd = object(2 * PAGE);
    unsigned char *w = map(2 * PAGE, RW, fd, 0), *x = map(2 * PAGE, RX, fd, 0);
    rewrite(w, x, 10);
    w = mremap(w, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
               mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    printf("moved writer: %ld\n", rewrite(w, x, 100));
    x = mremap(x, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
               mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    printf("moved runner: %ld\n", rewrite(w, x, 100));
    unsigned char *again = mremap(w, 0, 2 * PAGE, MREMAP_MAYMOVE);
    printf("doubled: %ld\n", rewrite(again, x, 100));
    // A page of code that is written through itself, moved and made larger.
    unsigned char *own = mmap(NULL, 4 * PAGE, RW | RX, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = rewrite(own + PAGE, own + PAGE, 50);
    own = mremap(own, 4 * PAGE, 9 * PAGE, MREMAP_MAYMOVE);
    sum += rewrite(own + PAGE, own + PAGE, 50) + rewrite(own + 8 * PAGE, own + 8 * PAGE, 50);
    printf("moved alone: %ld\n", sum);
    // Shared anonymous memory has no other name: it is doubled.
    w = mmap(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    x = mremap(w, 0, 2 * PAGE, MREMAP_MAYMOVE);
    mprotect(x, 2 * PAGE, RX);
    printf("anonymous: %ld\n", rewrite(w + PAGE + 8, x + PAGE + 8, 100));
}

static void calls(void) {
    int fd = object(2 * PAGE);
    unsigned char *w = map(2 * PAGE, RW, fd, 0), *x = map(2 * PAGE, RX, fd, 0);
    unsigned char code[6];
    int ends[2];
    long sum = 0;
    if (pipe(ends))
        exit(1);
    for (int i = 0; i < 50; i++) {
        make(code, i);
        if (write(ends[1], code, 6) != 6 || read(ends[0], w, 6) != 6)
            exit(1);
        sum += call(x);
    }
    printf("read: %ld\n", sum);
    sum = 0;
    for (int i = 0; i < 50; i++) {
        make(code, i);
        struct iovec parts[2] = {{w, 3}, {w + 3, 3}};
        if (write(ends[1], code, 6) != 6 || readv(ends[0], parts, 2) != 6)
            exit(1);
        sum += call(x);
    }
    printf("readv: %ld\n", sum);
    sum = 0;
    for (int i = 0; i < 50; i++) {
        make(code, i);
        if (pwrite(fd, code, 6, 4090) != 6)
            exit(1);
        sum += call(x + 4090);
        if (lseek(fd, 0, SEEK_SET) || write(fd, code, 6) != 6)
            exit(1);
        sum += call(x);
    }
    printf("pwrite and write: %ld\n", sum);
    char name[] = "/tmp/dh-code-XXXXXX";
    int from = mkstemp(name);
    unlink(name);
    sum = 0;
    for (int i = 0; i < 20; i++) {
        make(code, i);
        off_t start = 0;
        if (pwrite(from, code, 6, 0) != 6 || lseek(fd, 0, SEEK_SET) ||
            sendfile(fd, from, &start, 6) != 6)
            exit(1);
        sum += call(x);
    }
    printf("sendfile: %ld\n", sum);
    // A file, its private mapping, and one that shows what is written to it.
    if (ftruncate(from, PAGE))
        exit(1);
    unsigned char *p = mmap(NULL, PAGE, RX, MAP_PRIVATE, from, 0);
    w = map(PAGE, RW, from, 0);
    printf("private: %ld\n", rewrite(w, p, 100));
    sum = 0;
    for (int i = 0; i < 20; i++) {
        make(code, i);
        if (pwrite(from, code, 6, 0) != 6)
            exit(1);
        sum += call(p);
    }
    printf("private, by pwrite: %ld\n", sum);
    int other = shmget(IPC_PRIVATE, PAGE, 0700);
    w = shmat(other, NULL, 0);
    x = shmat(other, NULL, SHM_RDONLY | SHM_EXEC);
    shmctl(other, IPC_RMID, NULL);
    printf("System V: %ld\n", rewrite(w, x, 100));
}

static unsigned char *writer, *runner;
static pthread_barrier_t barrier;
static long heard;

static void *listen(void *none) {
    (void)none;
    for (int i = 0; i < 100; i++) {
        pthread_barrier_wait(&barrier);
        heard += call(runner);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void threads(void) {
    int fd = object(PAGE);
    writer = map(PAGE, RW, fd, 0);
    runner = map(PAGE, RX, fd, 0);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, listen, NULL);
    for (int i = 0; i < 100; i++) {
        emit(writer, i);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
    }
    pthread_join(thread, NULL);
    printf("another thread: %ld\n", heard);
}

static void processes(void) {
    int fd = object(PAGE);
    unsigned char *w = map(PAGE, RW, fd, 0), *x = map(PAGE, RX, fd, 0);
    unsigned char *own = mmap(NULL, PAGE, RW | RX, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int to[2], from[2], value = 0;
    if (pipe(to) || pipe(from))
        exit(1);
    emit(w, 0);
    emit(own, 0);
    call(x);
    call(own);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        close(to[1]);
        while (read(to[0], &value, sizeof value) == sizeof value) {
            emit(w, value);
            emit(own, value);
            if (write(from[1], &value, sizeof value) != sizeof value)
                _exit(1);
        }
        _exit(0);
    }
    long sum = 0;
    for (int i = 0; i < 30; i++)
        if (write(to[1], &i, sizeof i) == sizeof i &&
            read(from[0], &value, sizeof value) == sizeof value)
            sum += call(x) + call(own);
    close(to[1]);
    waitpid(child, NULL, 0);
    printf("another process: %ld\n", sum);
}

// Much code, each function of its own; rewritten here and there.
static void much(void) {
    enum { FUNCTIONS = 4000 };
    size_t length = 16 * FUNCTIONS;
    int fd = object(length);
    unsigned char *w = map(length, RW, fd, 0), *x = map(length, RX, fd, 0);
    long sum = 0;
    for (int i = 0; i < FUNCTIONS; i++)
        emit(w + 16 * i, i);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < FUNCTIONS; i++)
            sum += call(x + 16 * i);
        emit(w + 16 * (round * 700), -round);
    }
    printf("much: %ld\n", sum);
}

// The writing instruction lies on the page that it writes to.
static void itself(void) {
    int fd = object(PAGE);
    unsigned char *w = map(PAGE, RW, fd, 0), *x = map(PAGE, RX, fd, 0);
    // inc dword [rdi]; mov eax, 1; ret: rdi is where the constant lies, seen by w
    unsigned char code[] = {0xff, 0x07, 0xb8, 1, 0, 0, 0, 0xc3};
    memcpy(w + 100, code, sizeof code);
    long sum = 0;
    for (int i = 0; i < 100; i++)
        sum += ((int (*)(unsigned char *))(x + 100))(w + 103);
    printf("itself: %ld\n", sum);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    orders();
    moves();
    calls();
    threads();
    processes();
    much();
    itself();
    return 0;
}
