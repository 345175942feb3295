package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

type group struct {
	wg     sync.WaitGroup
	once   sync.Once
	err    error
	cancel func()
}

func (g *group) run(f func() error) {
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		if err := f(); err != nil {
			g.once.Do(func() {
				g.err = err
				g.cancel()
			})
		}
	}()
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	g := &group{cancel: cancel}
	results := make([]int, 3)
	for i := range results {
		i := i
		g.run(func() error {
			results[i] = i * i
			if i == 2 {
				return errors.New("two")
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}
	g.wg.Wait()
	fmt.Println(results, g.err)
}
