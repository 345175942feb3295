package main

// #include <stdlib.h>
// #include <string.h>
// static int sum(int count) {
//     char block[256];
//     int total = 0;
//     memset(block, count, sizeof block);
//     for (size_t i = 0; i < sizeof block; i++)
//         total += block[i];
//     return total;
// }
import "C"

import (
	"fmt"
	"sync"
)

// Goroutines that take turns on a thread call C on the stack of that thread.
func main() {
	var group sync.WaitGroup
	results := make(chan int, 64)
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			for j := 0; j < 8; j++ {
				results <- int(C.sum(C.int(number)))
			}
		}(i)
	}
	group.Wait()
	close(results)
	total := 0
	for one := range results {
		total += one
	}
	fmt.Println(total)
}
