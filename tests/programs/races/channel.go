package main

import "fmt"

func main() {
	values := make(chan int, 3)
	total := 0
	done := make(chan bool)
	go func() {
		for v := range values {
			total += v
		}
		done <- true
	}()
	for i := 0; i < 20; i++ {
		values <- i
	}
	close(values)
	<-done
	fmt.Println(total)
}
