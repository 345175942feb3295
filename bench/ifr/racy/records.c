// Records that are copied, passed by value, formatted and reset while others
// write them (the misses of x264, ferret and streamcluster in paper 004).
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#define APART __attribute__((noinline))
enum { ROUNDS = 1000000 };
struct point { double at[6]; int weight; };
struct point centre, copied, reset_often;
char title[64] = "nothing";
static APART void move(double by) { for (int i = 0; i < 6; i++) centre.at[i] += by; centre.weight++; }
static APART double length(struct point p) { double s = 0; for (int i = 0; i < 6; i++) s += p.at[i]; return s + p.weight; }
static APART double measure(void) { return length(centre); }
static APART void publish(const struct point *p) { memcpy(&copied, p, sizeof copied); }
static APART double peek(void) { return copied.at[3]; }
static APART void clear(void) { memset(&reset_often, 0, sizeof reset_often); }
static APART void grow(void) { reset_often.weight++; }
static APART void name(const char *text) { strcpy(title, text); }
static APART size_t read_name(void) { return strlen(title); }
static void *writer(void *p) {
    struct point mine = { { 1 }, 2 };
    for (int i = 0; i < ROUNDS; i++) { move(i & 1 ? 1 : -1); mine.weight = i; publish(&mine); clear(); name(i & 1 ? "odd number" : "even"); }
    return p;
}
static void *reader(void *p) {
    double sum = 0; size_t letters = 0;
    for (int i = 0; i < ROUNDS; i++) { sum += measure() + peek(); grow(); letters += read_name(); }
    return sum + letters > 1e300 ? p : 0;
}
int main(void) {
    pthread_t t[2];
    pthread_create(&t[0], 0, writer, 0);
    pthread_create(&t[1], 0, reader, t);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    printf("%d\n", copied.weight > 0);
}
