package main

import "fmt"

func main() {
	text := make([]byte, 64)
	done := make(chan bool)
	go func() {
		copy(text, "hello, world, and more") // RACE text
		done <- true
	}()
	mine := make([]byte, 64)
	copy(mine, text) // RACE text
	<-done
	fmt.Println(len(mine))
}
