package main

import (
	"fmt"
	"sync"
	"time"
)

// Add inside the goroutine: Wait may come first.
func main() {
	var wg sync.WaitGroup
	total := 0
	go func() {
		wg.Add(1)
		time.Sleep(time.Millisecond)
		total++ // RACE total
		wg.Done()
	}()
	wg.Wait()
	fmt.Println(total) // RACE total
	time.Sleep(5 * time.Millisecond)
}
