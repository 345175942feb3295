// Part of of_library.c.
struct {
	int unused[3];
	long total;
} shared;
int shared_counter;
static int hidden;

void shared_add(void)
{
	hidden++; // RACE hidden
}
