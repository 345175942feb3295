// A queue that is taken down while others still use it is one mistake; a counter
// beside it is another.
// ANYTHING
// CAUSES 2
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct queue {
	int length, head;
	long taken;
	pthread_mutex_t lock;
};

static struct queue *queue;
static long counter;

static struct queue *queue_make(void)
{
	struct queue *made = calloc(1, sizeof *made);
	made->length = 4;
	pthread_mutex_init(&made->lock, 0);
	return made;
}

static void queue_destroy(struct queue *gone)
{
	gone->length = 0;
	gone->head = -1;
	gone->taken = -1;
	free(gone);
}

static void *consumer(void *arg)
{
	struct queue *mine = arg;
	long sum = 0;
	for (int i = 0; i < 10; i++) {
		sum += mine->length;
		sum += mine->head;
		sum += mine->taken;
		counter++;
	}
	return (void *)sum;
}

int main(void)
{
	pthread_t threads[2];
	queue = queue_make();
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], 0, consumer, queue);
	for (volatile int i = 0; i < 300; i++)
		;
	queue_destroy(queue);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], 0);
	printf("%d\n", counter > 0);
	return 0;
}
