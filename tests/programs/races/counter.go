package main

import (
	"fmt"
	"runtime"
	"sync"
)

var count int

func main() {
	runtime.GOMAXPROCS(4)
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for k := 0; k < 20000; k++ {
				count++ // RACE count
			}
		}()
	}
	group.Wait()
	fmt.Println(count > 0)
}
