// The value is received into a variable that another goroutine reads.
package main

import "fmt"

var value [3]int

func main() {
	values := make(chan [3]int, 1)
	done := make(chan int)
	go func() {
		done <- value[1] // RACE value
	}()
	values <- [3]int{1, 2, 3}
	value = <-values // RACE value
	fmt.Println(<-done)
}
