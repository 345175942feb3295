// What the run-time copies, compares and converts for the program, under a lock.
package main

import (
	"bytes"
	"fmt"
	"sync"
)

type pair struct {
	name *string
	size int
}

func main() {
	var lock sync.Mutex
	var all sync.WaitGroup
	text := make([]byte, 64)
	pairs := make([]pair, 8)
	var grown []int
	values := make(chan [4]int, 1)
	var last [4]int
	values <- last
	for i := 0; i < 3; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			mine := make([]byte, 64)
			for n := 0; n < 20; n++ {
				lock.Lock()
				copy(text, mine)
				copy(mine, text)
				copy(pairs, pairs[1:])
				grown = append(grown, n)
				_ = string(text) == string(mine)
				if !bytes.Equal(text, mine) {
					panic("differ")
				}
				lock.Unlock()
				last = <-values
				last[i]++
				values <- last
			}
		}(i)
	}
	all.Wait()
	fmt.Println(len(grown), last)
}
