package main

import "fmt"

// Two permits are one too many.
func main() {
	permits := make(chan bool, 2)
	total := 0
	done := make(chan bool)
	add := func() {
		permits <- true
		total++ // RACE total
		<-permits
	}
	go func() {
		add()
		done <- true
	}()
	add()
	<-done
	fmt.Println(total)
}
