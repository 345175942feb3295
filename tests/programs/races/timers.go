package main

import (
	"context"
	"fmt"
	"time"
)

var limit = 3 * time.Millisecond

// What is set before a timer is there when it runs.
func main() {
	note := "before"
	fired := make(chan string)
	time.AfterFunc(limit, func() { fired <- note })
	fmt.Println(<-fired)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	<-ctx.Done()
	note = "after"
	ticker := time.NewTicker(time.Millisecond)
	for i := 0; i < 3; i++ {
		<-ticker.C
	}
	ticker.Stop()
	<-time.After(limit)
	fmt.Println(note, ctx.Err())
}
