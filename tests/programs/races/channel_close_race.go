package main

import (
	"fmt"
	"time"
)

// Whoever closes must know that nobody sends any more.
func main() {
	values := make(chan int, 4)
	done := make(chan bool, 1)
	go func() {
		values <- 1 // RACE values
		done <- true
	}()
	time.Sleep(time.Millisecond)
	close(values) // RACE values
	<-done
	fmt.Println(len(values))
}
