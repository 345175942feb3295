package main

import "fmt"

// The buffer of a channel is a ring: a slot that is sent to again was received
// from before, so its owner may be told by an index.
func main() {
	const room = 3
	var table [room]int
	slots := make(chan int, room)
	free := make(chan int, room)
	for i := 0; i < room; i++ {
		free <- i
	}
	done := make(chan int)
	go func() {
		sum := 0
		for slot := range slots {
			sum += table[slot]
			free <- slot
		}
		done <- sum
	}()
	for i := 0; i < 40; i++ {
		slot := <-free
		table[slot] = i
		slots <- slot
	}
	close(slots)
	fmt.Println(<-done)
}
