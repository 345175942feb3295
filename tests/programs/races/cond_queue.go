package main

import (
	"fmt"
	"sync"
)

func main() {
	var mu sync.RWMutex
	cond := sync.NewCond(&mu)
	var queue []int
	var wg sync.WaitGroup
	sum := 0
	for w := 0; w < 2; w++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; n < 10; n++ {
				mu.Lock()
				for len(queue) == 0 {
					cond.Wait()
				}
				sum += queue[0]
				queue = queue[1:]
				mu.Unlock()
			}
		}()
	}
	for i := 0; i < 20; i++ {
		mu.Lock()
		queue = append(queue, i)
		mu.Unlock()
		cond.Signal()
		mu.RLock()
		_ = len(queue)
		mu.RUnlock()
	}
	for {
		cond.Broadcast()
		mu.Lock()
		n := len(queue)
		mu.Unlock()
		if n == 0 {
			break
		}
	}
	wg.Wait()
	fmt.Println(sum)
}
