package main

import (
	"fmt"
	"sync"
)

func main() {
	var group sync.WaitGroup
	sums := make([]int, 4)
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			for k := 0; k < 100; k++ {
				sums[i] += k
			}
		}(i)
	}
	group.Wait()
	fmt.Println(sums)
}
