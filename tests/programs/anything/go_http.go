// A server and its clients in one program, over TCP.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sort"
	"sync"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello %s", r.URL.Path)
	}))
	var lock sync.Mutex
	var got []string
	var group sync.WaitGroup
	for i := 0; i < 30; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			answer, err := http.Get(fmt.Sprintf("http://%s/%02d", listener.Addr(), i))
			if err != nil {
				panic(err)
			}
			body, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			lock.Lock()
			got = append(got, string(body))
			lock.Unlock()
		}(i)
	}
	group.Wait()
	sort.Strings(got)
	fmt.Println(got)
}
