// What goes through a helper is told apart by the object and by who called.
// ON first: slots[]
// ON second: slots[]
// ON lone: lone
#include <pthread.h>
#include <stdio.h>

static int one = 1;
static int *slots[6];
static int *lone;

__attribute__((noinline)) static void put(int **slot, int *value)
{
	*slot = value;
}

__attribute__((noinline)) static int *get(int **slot)
{
	return *slot;
}

static void *writer(void *arg)
{
	for (int i = 0; i < 3; i++)
		put(&slots[i], &one); // RACE first
	put(&lone, &one); // RACE lone
	for (int i = 3; i < 6; i++)
		put(&slots[i], &one); // RACE second
	return arg;
}

static void *reader(void *arg)
{
	long seen = 0;
	for (int i = 0; i < 3; i++)
		seen += get(&slots[i]) != 0; // RACE first
	seen += get(&lone) != 0; // RACE lone
	for (int i = 3; i < 6; i++)
		seen += get(&slots[i]) != 0; // RACE second
	return (void *)seen;
}

int main(void)
{
	pthread_t a, b;
	pthread_create(&a, 0, writer, 0);
	pthread_create(&b, 0, reader, 0);
	pthread_join(a, 0);
	pthread_join(b, 0);
	puts("ok");
	return 0;
}
