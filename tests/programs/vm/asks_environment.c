/* What a program can do with a variable of its environment: nothing, copy it
 * (and write it out), or decide by it; by itself or in a child. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char copy[256];

static void use(const char *how) {
    const char *value = getenv("API_TOKEN");
    if (!value || !strcmp(how, "ignore")) {
        puts("ignored");
    } else if (!strcmp(how, "print")) {
        strncpy(copy, value, sizeof copy - 1);
        puts(copy);
    } else {
        unsigned long sum = 0;
        for (int i = 0; value[i]; i++)
            for (int j = 0; j < value[i]; j++)
                sum += 3;
        printf("%lu\n", sum);
    }
}

int main(int argc, char **argv) {
    if (argc > 2 && !fork()) {
        use(argv[1]);
        fflush(stdout);
        _exit(0);
    }
    if (argc > 2)
        wait(0);
    else
        use(argv[1]);
    return 0;
}
