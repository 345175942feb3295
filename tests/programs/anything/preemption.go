// A goroutine that never yields is preempted by signal (SIGURG).
package main

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

var stop, spun int64

func main() {
	runtime.GOMAXPROCS(1)
	go func() {
		for {
			spun++
			if spun < 0 {
				break
			}
		}
	}()
	time.Sleep(30 * time.Millisecond)
	atomic.StoreInt64(&stop, 1)
	runtime.GC()
	fmt.Println("main goes on")
}
