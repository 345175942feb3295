package main

import "fmt"

func main() {
	left, right := make(chan int), make(chan int)
	quit := make(chan bool)
	go func() {
		for i := 0; i < 10; i++ {
			left <- i
			right <- -i
		}
		close(quit)
	}()
	sum := 0
	for {
		select {
		case v := <-left:
			sum += v
		case v := <-right:
			sum += v
		case <-quit:
			fmt.Println(sum)
			return
		}
	}
}
