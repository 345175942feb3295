package main

import (
	"fmt"
	"time"
)

// What follows the start of a timer is not before what it runs.
func main() {
	note := 0
	done := make(chan bool)
	time.AfterFunc(time.Millisecond, func() {
		note++ // RACE note
		done <- true
	})
	note++ // RACE note
	<-done
	fmt.Println(note)
}
