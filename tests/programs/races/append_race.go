package main

import "fmt"

type pair struct {
	name *string
	size int
}

func main() {
	list := make([]int, 4)
	pairs := make([]pair, 4)
	name := "name"
	done := make(chan bool)
	go func() {
		list[1] = 7               // RACE list
		pairs[2] = pair{&name, 1} // RACE pairs
		done <- true
	}()
	longer := append(list, 5) // RACE list
	more := make([]pair, 4)
	copy(more, pairs) // RACE pairs
	<-done
	fmt.Println(len(longer), len(more))
}
