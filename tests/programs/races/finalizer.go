package main

import (
	"fmt"
	"runtime"
	"time"
)

type thing struct{ label string }

// A finalizer comes after every use; goroutines keep what they are through
// collections.
func main() {
	made := make(chan bool)
	gone := make(chan string, 4)
	for i := 0; i < 4; i++ {
		go func() {
			t := &thing{"first"}
			runtime.SetFinalizer(t, func(t *thing) {
				t.label += "."
				gone <- t.label
			})
			t.label = "second"
			made <- true
		}()
	}
	for i := 0; i < 4; i++ {
		<-made
		runtime.GC()
	}
	count := 0
	for wait := 0; wait < 20 && count < 1; wait++ {
		runtime.GC()
		select {
		case <-gone:
			count++
		case <-time.After(10 * time.Millisecond):
		}
	}
	fmt.Println("done")
}
