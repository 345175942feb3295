// Bit-fields that share a byte are named together, those that do not alone.
// ON shared: state.{on,ready}
// ON alone: state.users
#include <pthread.h>
#include <stdio.h>

static struct {
	int before;
	unsigned on : 3, ready : 5, users : 8;
	int behind;
} state;

static void *first(void *arg)
{
	for (int i = 0; i < 20; i++) {
		state.on = i; // RACE shared
		state.users = i; // RACE alone
	}
	return arg;
}

static void *second(void *arg)
{
	for (int i = 0; i < 20; i++) {
		state.ready = i; // RACE shared
		state.users = 0; // RACE alone
	}
	return arg;
}

int main(void)
{
	pthread_t a, b;
	pthread_create(&a, 0, first, 0);
	pthread_create(&b, 0, second, 0);
	pthread_join(a, 0);
	pthread_join(b, 0);
	printf("%d\n", state.before + state.behind);
	return 0;
}
