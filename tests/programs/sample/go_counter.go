// A counter that goroutines share without a lock, in a program whose run-time
// preempts by SIGURG (loops without calls), collects garbage, and moves stacks.
// EXPECT: race tag=hot
// ARGS: 5
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

var total int

//go:noinline
func count(rounds int) int {
	sum := 0
	for i := 0; i < rounds; i++ {
		total++ // RACE hot
		sum += i
	}
	return sum
}

func deep(n int) int {
	var room [64]int
	if n == 0 {
		return 0
	}
	room[n%64] = n
	return deep(n-1) + room[n%64]
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[1])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var done sync.WaitGroup
	bad := make(chan string, 8)
	for worker := 0; worker < 4; worker++ {
		done.Add(1)
		go func() {
			defer done.Done()
			for time.Now().Before(end) {
				if count(20000) != 199990000 {
					bad <- "a loop went wrong"
				}
				if deep(300) != 45150 {
					bad <- "a stack went wrong"
				}
				garbage := make([]byte, 4096)
				garbage[17] = 1
			}
		}()
	}
	done.Wait()
	select {
	case what := <-bad:
		fmt.Println(what)
		os.Exit(1)
	default:
		fmt.Println("ok")
	}
}
