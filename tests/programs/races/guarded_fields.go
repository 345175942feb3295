package main

import (
	"fmt"
	"sync"
	"time"
)

// The compiler reads the first byte of a struct to see that the pointer to it is
// not nil, before the lock is held; the run-time works on the goroutines' state.
type counts struct {
	total  int64
	events map[string]int
	mutex  sync.RWMutex
}

func (c *counts) add(name string) {
	c.mutex.Lock()
	c.total++
	c.events[name]++
	c.mutex.Unlock()
}

func (c *counts) sum() int64 {
	c.mutex.RLock()
	defer c.mutex.RUnlock()
	return c.total
}

func main() {
	c := &counts{events: map[string]int{}}
	var group sync.WaitGroup
	for i := 0; i < 6; i++ {
		group.Add(1)
		go func(name string) {
			defer group.Done()
			for j := 0; j < 40; j++ {
				begin := time.Now()
				c.add(name)
				if c.sum() == 0 || time.Since(begin) < 0 {
					panic("nothing counted")
				}
				time.Sleep(time.Microsecond)
			}
		}(fmt.Sprint(i))
	}
	group.Wait()
	fmt.Println(c.sum())
}
