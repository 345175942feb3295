package main

import "fmt"

// A channel with room for one is a mutex.
func main() {
	permits := make(chan bool, 1)
	total := 0
	done := make(chan bool, 4)
	for i := 0; i < 4; i++ {
		go func() {
			for j := 0; j < 50; j++ {
				permits <- true
				total++
				<-permits
			}
			done <- true
		}()
	}
	for i := 0; i < 4; i++ {
		<-done
	}
	fmt.Println(total)
}
