// Hundreds of goroutines, channels, select, timers, maps and the collector.
package main

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

type node struct {
	left, right *node
	value       int
}

func tree(depth int) *node {
	if depth == 0 {
		return &node{value: 1}
	}
	return &node{tree(depth - 1), tree(depth - 1), depth}
}

func (n *node) sum() int {
	if n == nil {
		return 0
	}
	return n.value + n.left.sum() + n.right.sum()
}

func main() {
	in, out := make(chan int), make(chan int, 16)
	var group sync.WaitGroup
	for i := 0; i < 400; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := range in {
				out <- n * n
			}
		}()
	}
	go func() {
		for i := 0; i < 5000; i++ {
			in <- i
		}
		close(in)
		group.Wait()
		close(out)
	}()
	total := 0
	for n := range out {
		total += n
	}
	counts := map[int]int{}
	var lock sync.Mutex
	var trees sync.WaitGroup
	for i := 0; i < 50; i++ {
		trees.Add(1)
		go func(i int) {
			defer trees.Done()
			s := tree(8).sum()
			lock.Lock()
			counts[s] += i
			lock.Unlock()
		}(i)
	}
	trees.Wait()
	runtime.GC()
	ticks := 0
	ticker := time.NewTicker(2 * time.Millisecond)
	done := time.After(30 * time.Millisecond)
loop:
	for {
		select {
		case <-ticker.C:
			ticks++
		case <-done:
			break loop
		}
	}
	defer func() { fmt.Println("recovered:", recover()) }()
	fmt.Println(total, counts, ticks > 3)
	var p *node
	fmt.Println(p.value)
}
