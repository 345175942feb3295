// The language's library and operators say nothing about the object.
// ON sizes: heap block from main
// ON cells: grid.cells[]
#include <cstdio>
#include <thread>
#include <vector>

struct Grid {
    int cells[16];
    int &operator[](int at) { return cells[at]; }
};

static Grid grid;

static void work(std::vector<int> *sizes)
{
    for (int i = 0; i < 16; i++) {
        (*sizes)[i] += 1; // RACE sizes
        grid[i] += 1; // RACE cells
    }
}

int main()
{
    std::vector<int> sizes(16);
    std::thread one(work, &sizes);
    std::thread two(work, &sizes);
    one.join();
    two.join();
    std::printf("%d\n", sizes[0] + grid[0] > 0);
}
