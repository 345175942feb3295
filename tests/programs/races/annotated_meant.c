// Races that the program says it means: by the names that sanitisers know, and
// by requests of DRD and Helgrind. Only what is left unsaid is reported.
#include "two.h"
#include <valgrind/drd.h>
#include <valgrind/helgrind.h>
__attribute__((noinline)) void AnnotateBenignRaceSized(const char *file, int line, const volatile void *at, long size,
                                                       const char *why) {
    __asm__ volatile("" ::"r"(file), "r"(line), "r"(at), "r"(size), "r"(why));
}
__attribute__((noinline)) void AnnotateIgnoreReadsBegin(const char *file, int line) {
    __asm__ volatile("" ::"r"(file), "r"(line));
}
__attribute__((noinline)) void AnnotateIgnoreReadsEnd(const char *file, int line) {
    __asm__ volatile("" ::"r"(file), "r"(line));
}
static struct {
    long hits, misses;
} statistics;
static long ignored, untracked, looked_at, again;
static void *count(void *arg) {
    statistics.hits++;
    statistics.misses += 3;
    ignored++;
    untracked++;
    again++; // RACE again
    looked_at = ignored;
    return arg;
}
static void *total(void *arg) {
    statistics.hits++;
    statistics.misses += 5;
    ignored++;
    untracked++;
    again++; // RACE again
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    long seen = looked_at;
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    return seen < 0 ? 0 : arg;
}
int main(void) {
    AnnotateBenignRaceSized(__FILE__, __LINE__, &statistics, sizeof statistics, "only statistics");
    DRD_IGNORE_VAR(ignored);
    VALGRIND_HG_DISABLE_CHECKING(&untracked, sizeof untracked);
    DRD_IGNORE_VAR(again);
    DRD_STOP_IGNORING_VAR(again);
    run(count, total);
    printf("%d\n", statistics.hits > 0);
    return 0;
}
