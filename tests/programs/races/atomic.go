package main

import (
	"fmt"
	"sync"
	"sync/atomic"
)

func main() {
	var count atomic.Int64
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for k := 0; k < 100; k++ {
				count.Add(1)
			}
		}()
	}
	group.Wait()
	fmt.Println(count.Load())
}
