// A walk through Go's own frames, on the main thread.
package main

import (
	"fmt"
	"runtime"
)

var total int

var table [4]struct {
	name string
	hits int
}

//go:noinline
func leaf(value int) int {
	total += value // leaf
	return total
}

func inlined(value int) int {
	table[2].hits += value // inlined
	return table[2].hits
}

//go:noinline
func recurse(depth int) int {
	if depth == 0 {
		return leaf(depth) + inlined(depth+total) // call of inlined
	}
	return recurse(depth-1) + depth
}

//go:noinline
func work() int {
	return recurse(5) + len(fmt.Sprintf("%d words", total))
}

func init() {
	runtime.LockOSThread()
}

// A stack that is large enough is not moved while the test looks at it.
//
//go:noinline
func grow() byte {
	var large [64 << 10]byte
	large[total] = 1
	return large[total+1]
}

func main() {
	total = int(grow())
	fmt.Println(work())
}
