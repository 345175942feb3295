// Elements of an array are one object, its fields are several; what copies a
// whole element is about the element, not about its first field.
// ON count: table[].count
// ON sum: table[].sum
// ON whole: spare
// CAUSES 2
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct entry {
	char kind;
	long count, sum;
	char end;
	long one, two, three, four;
};

static struct entry table[8], spare;
static volatile size_t size = sizeof spare;

static void *adder(void *arg)
{
	for (int i = 0; i < 8; i++) {
		table[i].count += 1; table[i].sum += i; // RACE count RACE sum
	}
	memcpy(&spare, arg, size); // RACE whole
	return 0;
}

int main(void)
{
	static struct entry made[2] = { { .count = 2 }, { .count = 3 } };
	pthread_t a, b;
	pthread_create(&a, 0, adder, &made[0]);
	pthread_create(&b, 0, adder, &made[1]);
	pthread_join(a, 0);
	pthread_join(b, 0);
	printf("%d\n", table[7].sum > 0 && spare.count > 0);
	return 0;
}
