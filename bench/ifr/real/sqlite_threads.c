// Four threads on two databases in memory: two with a connection of their own,
// two sharing one, as SQLite's serialised mode allows. Prints what must be
// there in the end.
#include "sqlite3.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static sqlite3 *shared;
static int rounds = 200;

static void must(sqlite3 *database, const char *text) {
    char *error = NULL;
    if (sqlite3_exec(database, text, NULL, NULL, &error) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", text, error);
        exit(1);
    }
}

static void fill(sqlite3 *database) {
    char text[200];
    for (int i = 0; i < rounds; i++) {
        snprintf(text, sizeof text, "INSERT INTO numbers VALUES (%d, 'name %d')", i, i * 7919 % 1000);
        must(database, text);
        if (i % 100 == 99)
            must(database, "SELECT count(*), max(name) FROM numbers WHERE name LIKE 'name 1%' GROUP BY n % 10");
    }
}

static void *work(void *own) {
    if (!own) {
        fill(shared);
        return NULL;
    }
    sqlite3 *database;
    if (sqlite3_open(":memory:", &database))
        exit(1);
    must(database, "CREATE TABLE numbers (n INTEGER, name TEXT)");
    fill(database);
    sqlite3_close(database);
    return NULL;
}

static int show(void *unused, int count, char **values, char **names) {
    (void)unused, (void)count, (void)names;
    puts(values[0]);
    return 0;
}

int main(int count, char **arguments) {
    if (count > 1)
        rounds = atoi(arguments[1]);
    if (sqlite3_open(":memory:", &shared))
        return 1;
    must(shared, "CREATE TABLE numbers (n INTEGER, name TEXT)");
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i & 1));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return sqlite3_exec(shared, "SELECT count(*) FROM numbers; PRAGMA integrity_check", show, NULL, NULL);
}
