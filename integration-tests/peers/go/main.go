// Clients of the lock service in a run of `chaos`: see ../README.md.
package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	polylock "github.com/polylock/polylock/clients/go"
)

var (
	busy = []string{"orders", "jobs", "cron"}
	rare = []string{"rare/1", "rare/2", "rare/3", "rare/4"}
	long = []string{"leader", "backup"}
)

const (
	crowded = "crowded"
	many    = 32
	look    = 20 * time.Millisecond
	stall   = 300 * time.Millisecond
)

// now returns the time of CLOCK_BOOTTIME.
func now() time.Duration {
	const boottime = 7
	var read syscall.Timespec
	if _, _, failure := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&read)), 0); failure != 0 {
		panic(failure)
	}
	return time.Duration(read.Nano())
}

type process struct {
	client           *polylock.Client
	name             string
	seed             int64
	lease            time.Duration
	dense            bool
	sections, stalls *os.File
	stops            chan struct{}

	mutex   sync.Mutex
	active  int
	waiting map[string]struct{}
}

func (process *process) stopped() bool {
	select {
	case <-process.stops:
		return true
	default:
		return false
	}
}

// acquire acquires the lock. An acquisition that gives up is started again.
func (process *process) acquire(lock string) *polylock.Lock {
	for {
		held, err := process.client.Acquire(context.Background(), lock, polylock.Options{TTL: process.lease})
		if err == nil {
			return held
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (process *process) hold(client, lock string, lasts time.Duration) {
	invoked := now()
	entry := fmt.Sprintf("%s %s %d", lock, client, invoked)
	process.wait(entry, true)
	held := process.acquire(lock)
	acquired := now()
	process.wait(entry, false)
	deadline := acquired
	update := func() {
		// In this order: the deadline is not later than that of the client.
		at := now()
		if left := held.Remaining(); left > 0 {
			deadline = at + left
		}
	}
	update()
	section := func(state, released, lost string) {
		fmt.Fprintf(process.sections, "v1 %s %s %s exclusive %d - %d - %d %s %s -\n",
			state, lock, client, invoked, acquired, deadline, released, lost)
	}
	section("open", "-", "-")
	released, lost := "-", "-"
	for released == "-" && lost == "-" {
		left := acquired + lasts - now()
		if left > look {
			left = look
		}
		select {
		case <-held.Lost():
			lost = fmt.Sprint(int64(now()))
		case <-time.After(left):
			// A renewal moves the deadline.
			update()
			if now() >= acquired+lasts {
				released = fmt.Sprint(int64(now()))
			}
		}
	}
	section("over", released, lost)
	held.Release()
}

func (process *process) wait(entry string, waits bool) {
	process.mutex.Lock()
	defer process.mutex.Unlock()
	if waits {
		process.waiting[entry] = struct{}{}
	} else {
		delete(process.waiting, entry)
	}
}

func (process *process) use(client string, draw *rand.Rand) {
	choose := func(names []string) string { return names[draw.Intn(len(names))] }
	upTo := func(longest time.Duration) time.Duration { return time.Duration(draw.Float64() * float64(longest)) }
	for !process.stopped() {
		pause := 2 * time.Millisecond
		if draw.Float64() < 0.25 && !process.dense {
			pause = 60 * time.Millisecond
		}
		time.Sleep(upTo(pause))
		if strings.HasSuffix(client, ".0") {
			process.hold(client, choose(long), 50*time.Millisecond+upTo(process.lease/2-50*time.Millisecond))
			continue
		}
		if process.dense && draw.Float64() > 1.0/16 {
			process.hold(client, fmt.Sprintf("many/%d", draw.Intn(many)), 0)
			continue
		}
		names := busy
		if draw.Float64() < 0.25 {
			names = rare
		}
		lock, longest := choose(names), 2*time.Millisecond
		if kind := draw.Intn(400); kind == 0 {
			longest = process.lease / 2
		} else if kind <= 40 {
			longest = 40 * time.Millisecond
		}
		process.hold(client, lock, upTo(longest))
	}
}

func (process *process) once(lock string) func(string, *rand.Rand) {
	return func(client string, draw *rand.Rand) {
		process.hold(client, lock, time.Duration(draw.Float64()*float64(2*time.Millisecond)))
	}
}

func (process *process) spawn(number int, work func(string, *rand.Rand)) {
	process.count(1)
	go func() {
		defer process.count(-1)
		work(fmt.Sprintf("%s.%d", process.name, number), rand.New(rand.NewSource(process.seed*10_000+int64(number))))
	}()
}

func (process *process) count(more int) int {
	process.mutex.Lock()
	defer process.mutex.Unlock()
	process.active += more
	return process.active
}

func (process *process) noteStalls() {
	for last := now(); ; {
		time.Sleep(30 * time.Millisecond)
		woken := now()
		if woken-last > stall {
			fmt.Fprintf(process.stalls, "%d %d\n", last, woken)
		}
		last = woken
	}
}

func run() error {
	// The name of the library comes first.
	arguments := os.Args[2:]
	if len(arguments) < 8 || arguments[0] != "chaos" {
		return fmt.Errorf("the arguments are those of ../README.md, not %q", arguments)
	}
	url, name, directory := arguments[1], arguments[2], arguments[3]
	var numbers [4]uint64
	for at := range numbers {
		number, err := strconv.ParseUint(arguments[4+at], 10, 64)
		if err != nil {
			return err
		}
		numbers[at] = number
	}
	clients, lease, limit := int(numbers[1]), time.Duration(numbers[2])*time.Millisecond, 5*time.Duration(numbers[3])*time.Millisecond
	var urls []string
	for _, server := range regexp.MustCompile(`[\d.]+:\d+`).FindAllString(url, -1) {
		urls = append(urls, "http://"+server)
	}
	process := &process{
		client: polylock.New(urls...), name: name, seed: int64(numbers[0]), lease: lease,
		dense: len(arguments) > 9 && arguments[9] == "true", stops: make(chan struct{}), waiting: map[string]struct{}{},
	}
	var err error
	for _, file := range []struct {
		kind string
		file **os.File
	}{{"sections", &process.sections}, {"stalls", &process.stalls}} {
		path := fmt.Sprintf("%s/%s.%s", directory, name, file.kind)
		if *file.file, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err != nil {
			return err
		}
	}
	go process.noteStalls()
	fmt.Println("ready")
	for number := 0; number < clients; number++ {
		process.spawn(number, process.use)
	}
	if clients == 0 {
		for number, lock := range append(append(append([]string{}, busy...), rare...), append(long, crowded)...) {
			process.spawn(number, process.once(lock))
		}
	}
	number := 1000
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		word, count, found := strings.Cut(lines.Text(), " ")
		if !found || word != "crowd" {
			break
		}
		more, err := strconv.Atoi(count)
		if err != nil {
			return err
		}
		for ; more > 0; more-- {
			process.spawn(number, process.once(crowded))
			number++
		}
	}
	close(process.stops)
	for end := now() + limit; process.count(0) > 0 && now() < end; {
		time.Sleep(5 * time.Millisecond)
	}
	process.mutex.Lock()
	defer process.mutex.Unlock()
	for entry := range process.waiting {
		fmt.Println("stuck", entry)
	}
	fmt.Println("done")
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
