// Files: everything a program does with regular files and directories.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#define SHOW(e)                                                                \
    do {                                                                       \
        errno = 0;                                                             \
        long result = (long)(e);                                               \
        printf("%s = %ld (%s)\n", #e, result, result < 0 ? strerrorname_np(errno) : "ok"); \
    } while (0)

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

int main(void) {
    char dir[] = "/tmp/dh-files-XXXXXX";
    if (!mkdtemp(dir)) return 1;
    SHOW(chdir(dir));
    char cwd[100];
    printf("cwd same: %d\n", !strcmp(getcwd(cwd, sizeof cwd), dir));

    int fd = open("a", O_RDWR | O_CREAT | O_EXCL, 0640);
    printf("open %d\n", fd);
    SHOW(open("a", O_RDWR | O_CREAT | O_EXCL, 0640));
    SHOW(open("missing", O_RDONLY));
    SHOW(write(fd, "hello world", 11));
    SHOW(lseek(fd, 6, SEEK_SET));
    char b[64] = {0};
    SHOW(read(fd, b, 5));
    puts(b);
    SHOW(pread(fd, b, 5, 0));
    puts(b);
    SHOW(pwrite(fd, "J", 1, 0));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(lseek(fd, -1, SEEK_SET));
    SHOW(lseek(fd, 0, SEEK_END));
    struct iovec v[3] = {{"one ", 4}, {"two ", 4}, {"three", 5}};
    SHOW(writev(fd, v, 3));
    char x[6] = {0}, y[6] = {0};
    struct iovec r[2] = {{x, 5}, {y, 5}};
    SHOW(preadv(fd, r, 2, 0));
    printf("%s|%s\n", x, y);
    SHOW(preadv2(fd, r, 2, 11, 0));
    printf("%s|%s\n", x, y);
    int fd2 = dup(fd);
    SHOW(lseek(fd2, 3, SEEK_SET));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(close(fd2));
    struct stat st;
    SHOW(fstat(fd, &st));
    printf("size %ld mode %o\n", (long)st.st_size, st.st_mode);
    SHOW(ftruncate(fd, 8));
    SHOW(stat("a", &st));
    printf("size %ld\n", (long)st.st_size);
    SHOW(fallocate(fd, 0, 0, 4096));
    SHOW(fsync(fd));

    int ap = open("a", O_WRONLY | O_APPEND);
    SHOW(write(ap, "end", 3));
    SHOW(lseek(ap, 0, SEEK_CUR));
    SHOW(fcntl(fd, F_SETFL, O_APPEND));
    SHOW(write(fd, "more", 4));
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(close(ap));

    SHOW(access("a", R_OK | W_OK));
    SHOW(access("b", F_OK));
    SHOW(link("a", "b"));
    SHOW(symlink("a", "c"));
    SHOW(lstat("c", &st));
    printf("link %d size %ld\n", S_ISLNK(st.st_mode), (long)st.st_size);
    SHOW(readlink("c", b, sizeof b));
    SHOW(rename("b", "d"));
    SHOW(mkdir("sub", 0755));
    SHOW(mkdir("sub", 0755));
    int dfd = open("sub", O_RDONLY | O_DIRECTORY);
    int in = openat(dfd, "inner", O_CREAT | O_WRONLY, 0600);
    SHOW(dprintf(in, "text %d\n", 42));
    SHOW(close(in));
    SHOW(fstatat(dfd, "inner", &st, 0));
    printf("inner %ld\n", (long)st.st_size);
    struct statx sx;
    SHOW(statx(dfd, "inner", 0, STATX_SIZE, &sx));
    printf("statx %ld\n", (long)sx.stx_size);
    SHOW(chmod("a", 0600));
    SHOW(utimensat(AT_FDCWD, "a", (struct timespec[2]){{100, 0}, {200, 0}}, 0));
    SHOW(stat("a", &st));
    printf("mtime %ld mode %o links %ld\n", (long)st.st_mtime, st.st_mode, (long)st.st_nlink);
    struct dirent **names;
    int n = scandir(".", &names, NULL, by_name);
    for (int i = 0; i < n; i++) printf("%s ", names[i]->d_name);
    puts("");
    SHOW(read(dfd, b, 10));
    SHOW(unlinkat(dfd, "inner", 0));
    SHOW(close(dfd));
    SHOW(rmdir("sub"));
    char big[3000];
    memset(big, 'q', sizeof big);
    int s = open("s", O_RDWR | O_CREAT, 0600), t = open("t", O_RDWR | O_CREAT, 0600);
    SHOW(write(s, big, sizeof big));
    off_t off = 100;
    SHOW(sendfile(t, s, &off, 5000));
    printf("off %ld\n", (long)off);
    SHOW(lseek(t, 0, SEEK_CUR));
    SHOW(lseek(s, 0, SEEK_SET));
    SHOW(copy_file_range(s, NULL, t, NULL, 1000, 0));
    SHOW(lseek(s, 0, SEEK_CUR));
    SHOW(lseek(t, 0, SEEK_CUR));
    struct statfs fs;
    SHOW(statfs(".", &fs));
    SHOW(umask(022));
    printf("umask %o\n", umask(027));
    SHOW(read(fd, (void *)8, 3));
    SHOW(open((void *)8, O_RDONLY));
    SHOW(close(99));
    SHOW(read(99, b, 1));
    SHOW(write(open("a", O_RDONLY), "x", 1));
    for (int i = 0; i < n; i++) unlink(names[i]->d_name);
    unlink("s"), unlink("t");
    chdir("/");
    SHOW(rmdir(dir));
    return 0;
}
