package main

import (
	"fmt"
	"sync"
)

func main() {
	var lock sync.Mutex
	var group sync.WaitGroup
	count := map[int]int{}
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for k := 0; k < 50; k++ {
				lock.Lock()
				count[k%7]++
				lock.Unlock()
			}
		}()
	}
	group.Wait()
	fmt.Println(count[3])
}
