package main

import "fmt"

// A send orders what came before it, not what comes after.
func main() {
	value := 0
	started := make(chan bool, 8)
	done := make(chan bool)
	go func() {
		started <- true
		value = 1 // RACE value
		done <- true
	}()
	value = 2 // RACE value
	<-started
	<-done
	fmt.Println(value)
}
