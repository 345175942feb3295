package main

import "fmt"

func main() {
	text := []byte("0123456789012345678901234567890123456789")
	done := make(chan bool)
	go func() {
		text[3] = 'x' // RACE text
		done <- true
	}()
	word := string(text) // RACE text
	<-done
	fmt.Println(len(word))
}
