// Helpers of helpers, and recursion, are one way to use an object.
// ON count: count
#include <pthread.h>
#include <stdio.h>

static int count;

__attribute__((noinline)) static void set(int *to, int value)
{
	*to = value;
}

__attribute__((noinline)) static void deeper(int *to, int depth)
{
	if (depth > 0)
		deeper(to, depth - 1);
	else
		set(to, *to + 1);
	__asm__ volatile("" ::: "memory");
}

static void *worker(void *arg)
{
	for (int i = 0; i < 40; i++)
		deeper(&count, i % 5); // RACE count
	return arg;
}

int main(void)
{
	pthread_t a, b;
	pthread_create(&a, 0, worker, 0);
	pthread_create(&b, 0, worker, 0);
	pthread_join(a, 0);
	pthread_join(b, 0);
	printf("%d\n", count > 0);
	return 0;
}
