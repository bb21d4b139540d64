package polylock_test

// The client against a real server. The variable POLYLOCK_PROGRAM names the command.

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	polylock "github.com/polylock/polylock/clients/go"
)

var background = context.Background()

type server struct {
	url, store string
	process    *os.Process
}

func program() string {
	if program := os.Getenv("POLYLOCK_PROGRAM"); program != "" {
		return program
	}
	return "polylock"
}

func start(t *testing.T, directory string, options ...string) *server {
	t.Helper()
	return startOn(t, directory, "127.0.0.1:0", options...)
}

func startOn(t *testing.T, directory, listen string, options ...string) *server {
	t.Helper()
	store := "sqlite://" + directory + "/locks.db"
	command := exec.Command(program(), append([]string{"serve", "-S", store, "--listen", listen}, options...)...)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return &server{strings.TrimSpace(line), store, command.Process}
}

func acquire(t *testing.T, client *polylock.Client, options polylock.Options) *polylock.Lock {
	t.Helper()
	lock, err := client.Acquire(background, "n", options)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func TestAWaiterContinuesWithTheNextServerIfItsOwnIsStopped(t *testing.T) {
	directory := t.TempDir()
	one, other := start(t, directory), start(t, directory)
	first := acquire(t, polylock.New(other.url), polylock.Options{})
	locks := polylock.New(one.url, other.url)
	// More than the time between two lines of a server.
	locks.Silence = 6 * time.Second
	granted := make(chan *polylock.Lock)
	go func() { granted <- acquire(t, locks, polylock.Options{}) }()
	time.Sleep(300 * time.Millisecond)
	one.process.Signal(syscall.SIGSTOP)
	time.Sleep(7 * time.Second)
	first.Release()
	(<-granted).Release()
	one.process.Signal(syscall.SIGCONT)
}

func TestAReleaseContinuesWithTheNextServerIfItsOwnIsStopped(t *testing.T) {
	directory := t.TempDir()
	one, other := start(t, directory), start(t, directory)
	lock := acquire(t, polylock.New(one.url, other.url), polylock.Options{})
	one.process.Signal(syscall.SIGSTOP)
	released := make(chan struct{})
	go func() { lock.Release(); close(released) }()
	// Less than the lease.
	acquire(t, polylock.New(other.url), polylock.Options{Wait: 10 * time.Second}).Release()
	<-released
	one.process.Signal(syscall.SIGCONT)
}

func TestAStoppedServerDelaysOneRequest(t *testing.T) {
	directory := t.TempDir()
	stopped, other := start(t, directory), start(t, directory)
	stopped.process.Signal(syscall.SIGSTOP)
	locks := polylock.New(stopped.url, other.url)
	acquire(t, locks, polylock.Options{}).Release()
	begin := time.Now()
	for range [10]int{} {
		acquire(t, locks, polylock.Options{}).Release()
	}
	// Five seconds for each request to the stopped one.
	if took := time.Since(begin); took > 10*time.Second {
		t.Fatal(took)
	}
}

func TestTheTimeToWaitHoldsForAllServersTogether(t *testing.T) {
	directory := t.TempDir()
	stopped, other := start(t, directory), start(t, directory)
	first := acquire(t, polylock.New(other.url), polylock.Options{})
	defer first.Release()
	stopped.process.Signal(syscall.SIGSTOP)
	locks := polylock.New(stopped.url, other.url)
	locks.Silence = time.Second
	begin := time.Now()
	_, err := locks.Acquire(background, "n", polylock.Options{Wait: 1500 * time.Millisecond})
	if waited := time.Since(begin); !errors.Is(err, polylock.ErrNotAcquired) || waited > 2500*time.Millisecond {
		t.Fatal(err, waited)
	}
	locks.URLs = locks.URLs[:1]
	if _, err := locks.Acquire(background, "n", polylock.Options{}); !errors.Is(err, polylock.ErrUnavailable) {
		t.Fatal(err)
	}
}

// The child process of the next test. It is stopped, and does not release the lock.
func TestAStoppedHolder(t *testing.T) {
	url := os.Getenv("POLYLOCK_STOPPED_URL")
	if url == "" {
		t.Skip("the next test starts it")
	}
	lock := acquire(t, polylock.New(url), polylock.Options{TTL: 2 * time.Second})
	time.Sleep(3 * time.Second)
	if err := lock.EnsureHeld(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	<-lock.Lost()
	fmt.Println("lost")
	time.Sleep(time.Minute)
}

func TestTheLockOfAStoppedClientIsFreeALeaseAfterItsLastRenewal(t *testing.T) {
	server := start(t, t.TempDir())
	child := exec.Command(os.Args[0], "-test.run", "TestAStoppedHolder")
	child.Env = append(os.Environ(), "POLYLOCK_STOPPED_URL="+server.url)
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		child.Process.Kill()
		child.Wait()
	})
	lines := bufio.NewReader(output)
	if line, err := lines.ReadString('\n'); line != "held\n" {
		t.Fatal(line, err)
	}
	child.Process.Signal(syscall.SIGSTOP)
	// Its connection stays open.
	acquire(t, polylock.New(server.url), polylock.Options{Wait: 3 * time.Second}).Release()
	child.Process.Signal(syscall.SIGCONT)
	if line, err := lines.ReadString('\n'); line != "lost\n" {
		t.Fatal(line, err)
	}
}

func TestAUrlIsThatOfAServer(t *testing.T) {
	for _, url := range []string{"ftp://h", "127.0.0.1:7420", "h", "http://", "http://h/locks", "http://h?x=1", "http://u:secret@h", "http://h:x"} {
		_, err := polylock.New(url).Acquire(background, "n", polylock.Options{})
		if err == nil || errors.Is(err, polylock.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Fatal(url, err)
		}
	}
	server := start(t, t.TempDir())
	acquire(t, polylock.New(server.url+"/"), polylock.Options{}).Release()
}

func TestTheOwnerIsThisProcessUnlessItStatesAnother(t *testing.T) {
	server := start(t, t.TempDir())
	host, _ := os.Hostname()
	for stated, shown := range map[string]string{"": fmt.Sprintf("%s:%d", host, os.Getpid()), "billing": "billing"} {
		lock := acquire(t, polylock.New(server.url), polylock.Options{Owner: stated})
		response, err := http.Get(server.url + "/v1/locks/n")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if !strings.Contains(string(text), fmt.Sprintf("%q", shown)) {
			t.Fatal(string(text))
		}
		lock.Release()
	}
}

func TestAReleaseIsRepeatedWhileNoServerCanBeReached(t *testing.T) {
	server := start(t, t.TempDir())
	lock := acquire(t, polylock.New(server.url), polylock.Options{})
	server.process.Signal(syscall.SIGSTOP)
	lock.Release()
	server.process.Signal(syscall.SIGCONT)
	// Long before its lease ends.
	acquire(t, polylock.New(server.url), polylock.Options{Wait: 8 * time.Second}).Release()
}

func TestTheContextOfALockEndsWithIt(t *testing.T) {
	server := start(t, t.TempDir())
	lock := acquire(t, polylock.New(server.url), polylock.Options{TTL: time.Second})
	work := lock.Context(background)
	server.process.Kill()
	select {
	case <-work.Done():
	case <-time.After(3 * time.Second):
		t.Fatal("the context goes on")
	}
	if err := lock.EnsureHeld(); !errors.Is(err, polylock.ErrLost) {
		t.Fatal(err)
	}
}

func TestAContextThatEndsLeavesNothing(t *testing.T) {
	locks := polylock.New(start(t, t.TempDir()).url)
	first := acquire(t, locks, polylock.Options{})
	ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
	defer cancel()
	if _, err := locks.Acquire(ctx, "n", polylock.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	first.Release()
	acquire(t, locks, polylock.Options{Wait: 10 * time.Second}).Release()
}

func TestACallerHasTheRightsOfItsToken(t *testing.T) {
	directory := t.TempDir()
	access := filepath.Join(directory, "access.toml")
	text := fmt.Sprintf("[[caller]]\nname = \"test\"\ntoken_sha256 = \"%x\"\nallow = [{ prefix = \"n\", rights = [\"exclusive\"] }]\n", sha256.Sum256([]byte("secret")))
	if err := os.WriteFile(access, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	locks := polylock.New(start(t, directory, "--access", access).url)
	locks.Token = "secret"
	acquire(t, locks, polylock.Options{}).Release()
	var problem *polylock.Problem
	if _, err := locks.Acquire(background, "other", polylock.Options{}); !errors.As(err, &problem) || problem.Status != 403 {
		t.Fatal(err)
	}
	locks.Token = "x"
	if _, err := locks.Acquire(background, "n", polylock.Options{}); !errors.As(err, &problem) || problem.Status != 401 {
		t.Fatal(err)
	}
}

func TestIncrementsAreExact(t *testing.T) {
	directory := t.TempDir()
	locks, path := polylock.New(start(t, directory).url), filepath.Join(directory, "number")
	os.WriteFile(path, []byte("0"), 0o600)
	var all sync.WaitGroup
	for task := 0; task < 8; task++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < 25; i++ {
				lock := acquire(t, locks, polylock.Options{})
				text, _ := os.ReadFile(path)
				number, _ := strconv.Atoi(string(text))
				time.Sleep(time.Millisecond)
				os.WriteFile(path, []byte(strconv.Itoa(number+1)), 0o600)
				lock.Release()
			}
		}()
	}
	all.Wait()
	if text, _ := os.ReadFile(path); string(text) != "200" {
		t.Fatal(string(text))
	}
}
