// MISSED at stripped: which function is inlined is not known there.
package main

import (
	"fmt"
	"sync"
)

func main() {
	var mu sync.RWMutex
	var wg sync.WaitGroup
	hits := 0
	for i := 0; i < 2; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			mu.RLock()
			hits++ // RACE hits
			mu.RUnlock()
		}()
	}
	wg.Wait()
	fmt.Println(hits)
}
