// Two variables on one line are two races.
// ON hits: hits
// ON last: last
// CAUSES 2
#include <pthread.h>
#include <stdio.h>

static long hits;
static int *last;
static int value = 1;

static void *writer(void *arg)
{
	for (int i = 0; i < 50; i++) { hits++; last = &value; } // RACE hits RACE last
	return arg;
}

static void *reader(void *arg)
{
	for (int i = 0; i < 50; i++) { hits++; if (last) value ^= 0; } // RACE hits RACE last
	return arg;
}

int main(void)
{
	pthread_t one, two;
	pthread_create(&one, 0, writer, 0);
	pthread_create(&two, 0, reader, 0);
	pthread_join(one, 0);
	pthread_join(two, 0);
	printf("%d\n", hits > 0);
	return 0;
}
