// What raced is named by the global pointer to it, with element and field.
// NAMES output[3].size
// NAMES pool.nodes[2].next
// NAMES head->count
#include <pthread.h>
#include <stdlib.h>

struct buffer {
	char *bytes;
	unsigned size;
};

struct node {
	struct node *next;
	long count;
};

struct buffer *output;
struct node *head;
struct {
	int used;
	struct node *nodes;
} pool;

__attribute__((noinline)) static void grow(void *block, int by)
{
	((struct buffer *)block)->size += by;
}

static void *worker(void *arg)
{
	for (int i = 0; i < 20; i++) {
		grow(&output[3], i);
		pool.nodes[2].next = arg;
		head->count++;
	}
	return arg;
}

int main(void)
{
	pthread_t one, two;
	output = calloc(8, sizeof *output);
	pool.nodes = calloc(4, sizeof *pool.nodes);
	head = calloc(1, sizeof *head);
	pthread_create(&one, 0, worker, 0);
	pthread_create(&two, 0, worker, 0);
	pthread_join(one, 0);
	pthread_join(two, 0);
	return (int)head->count;
}
