// The twin without a race: mutex, channels, atomics, a wait group and a sync.Map
// under load, with preemption by SIGURG, garbage collection and moving stacks.
// EXPECT: silent
// ARGS: 5
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

var (
	lock  sync.Mutex
	total int
	hits  int64
	seen  sync.Map
)

//go:noinline
func count(rounds int) {
	for i := 0; i < rounds; i++ {
		lock.Lock()
		total++
		lock.Unlock()
		atomic.AddInt64(&hits, 1)
	}
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[1])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var done sync.WaitGroup
	results := make(chan []int, 4)
	sum := make(chan int)
	go func() {
		all := 0
		for result := range results {
			for _, value := range result {
				all += value
			}
		}
		sum <- all
	}()
	var expected int64
	for worker := 0; worker < 4; worker++ {
		done.Add(1)
		go func(worker int) {
			defer done.Done()
			rounds := 0
			for time.Now().Before(end) {
				count(500)
				values := make([]int, 100)
				for i := range values {
					values[i] = i
				}
				results <- values
				atomic.AddInt64(&expected, 4950)
				seen.Store(rounds%16+100*worker, rounds)
				rounds++
			}
		}(worker)
	}
	done.Wait()
	close(results)
	if int64(total) != atomic.LoadInt64(&hits) || int64(<-sum) != expected {
		fmt.Println("counted wrong")
		os.Exit(1)
	}
	fmt.Println("ok")
}
