// Child processes with pipes, signals and pidfds, as os/exec does it.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	command := exec.Command("sort", "-r")
	command.Stdin = strings.NewReader("a\nc\nb\n")
	out, err := command.Output()
	fmt.Printf("%q %v\n", out, err)
	err = exec.Command("sh", "-c", "exit 7").Run()
	fmt.Println(err)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	fmt.Println(<-signals)
	sleeper := exec.Command("sleep", "100")
	sleeper.Start()
	sleeper.Process.Kill()
	fmt.Println(sleeper.Wait())
}
