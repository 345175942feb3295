package main

import (
	"fmt"
	"sync"
	"sync/atomic"
)

func main() {
	var once sync.Once
	var table sync.Map
	var pool = sync.Pool{New: func() any { return new([16]int) }}
	var setting atomic.Value
	var wg sync.WaitGroup
	name := ""
	for i := 0; i < 4; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			once.Do(func() { name = "ready" })
			b := pool.Get().(*[16]int)
			b[i]++
			pool.Put(b)
			v := &struct{ n int }{i}
			table.Store(i, v)
			setting.Store(v)
			if s, ok := table.Load((i + 1) % 4); ok {
				_ = fmt.Sprint(s.(*struct{ n int }).n, name)
			}
		}(i)
	}
	wg.Wait()
	fmt.Println(name, setting.Load().(*struct{ n int }).n >= 0)
}
