// Heap objects are told apart by who asked for the memory, whatever is between
// that and the allocator, and by the field.
// ON left: heap block node.count from make_left
// ON right: heap block node.count from make_right
// ON name: heap block node.name from make_right
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct node {
	struct node *next;
	const char *name;
	long count;
};

static struct node *left[4], *right[4];

static void *allocate(size_t size)
{
	void *memory = calloc(1, size);
	if (!memory)
		abort();
	return memory;
}

static struct node *make_left(void)
{
	return allocate(sizeof(struct node));
}

static struct node *make_right(void)
{
	struct node *made = allocate(sizeof(struct node));
	made->name = "right";
	return made;
}

__attribute__((noinline)) static void add(struct node *to)
{
	to->count++; // RACE left RACE right
}

static void *worker(void *arg)
{
	for (int i = 0; i < 4; i++) {
		add(left[i]);
		add(right[i]);
		struct node *mine = right[i];
		mine->name = arg; // RACE name
	}
	return 0;
}

int main(void)
{
	for (int i = 0; i < 4; i++) {
		left[i] = make_left();
		right[i] = make_right();
	}
	pthread_t a, b;
	pthread_create(&a, 0, worker, "a");
	pthread_create(&b, 0, worker, "b");
	pthread_join(a, 0);
	pthread_join(b, 0);
	printf("%d\n", left[0]->count > 0);
	return 0;
}
