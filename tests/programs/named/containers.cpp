// The same in containers: the elements are the container's own.
// NAMES shop::items[2].price
// NAMES stock.boxes[1].left
#include <thread>
#include <vector>

struct item {
	int number, price;
};
struct box {
	long left, right;
};

namespace shop {
std::vector<item> items(5);
}
struct {
	int unused;
	std::vector<box> boxes{3};
} stock;

static void work()
{
	for (int i = 0; i < 20; i++) {
		shop::items[2].price += i;
		stock.boxes[1].left++;
	}
}

int main()
{
	std::thread one(work), two(work);
	one.join();
	two.join();
	return (int)stock.boxes[1].left & 1;
}
