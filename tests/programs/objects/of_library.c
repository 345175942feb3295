// A variable of a library has its own name, not that of the slot through which
// it is found, and its fields.
// LIBRARY library/shared.c
// ON total: shared.total
// ON counter: shared_counter
// ON hidden: hidden
#include <pthread.h>
#include <stdio.h>

extern struct {
	int unused[3];
	long total;
} shared;
extern int shared_counter;
void shared_add(void);

static void *worker(void *arg)
{
	for (int i = 0; i < 30; i++) {
		shared.total++; // RACE total
		shared_counter++; // RACE counter
		shared_add();
	}
	return arg;
}

int main(void)
{
	pthread_t a, b;
	pthread_create(&a, 0, worker, 0);
	pthread_create(&b, 0, worker, 0);
	pthread_join(a, 0);
	pthread_join(b, 0);
	printf("%d\n", shared.total > 0 && shared_counter > 0);
	return 0;
}
