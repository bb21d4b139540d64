package polylock_test

// The vectors that all clients share: see clients/README.md. The variable POLYLOCK_VECTORS names the file.

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	polylock "github.com/polylock/polylock/clients/go"
)

type step struct {
	Acquire, Begin, Waits, Finish, Held, Ended, Lost, Once, Succeed, Fail, Release, Token, Tokens, Break, Server string

	OtherSlot string `json:"other_slot"`
	AfterLoss string `json:"after_loss"`
	PauseMs   int    `json:"pause_ms"`

	Lock, Job, Mode, Label, Error, Reason, Because, Above, Than string

	Also     []string
	Of       of
	Campaign bool
	Slots    int
	Retries  int
	Attempt  int
	EveryMs  int  `json:"every_ms"`
	TTLMs    int  `json:"ttl_ms"`
	WaitMs   *int `json:"wait_ms"`
	WithinMs int  `json:"within_ms"`
}

// of is one name or several.
type of []string

func (names *of) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		*names = of{""}
		return json.Unmarshal(text, &(*names)[0])
	}
	return json.Unmarshal(text, (*[]string)(names))
}

type vectors struct {
	Scenarios []struct {
		Name  string
		Steps []step
	}
}

type attempt struct {
	granted chan *polylock.Lock
	at      time.Time
}

type scenario struct {
	*testing.T
	directory string
	server    *server
	locks     *polylock.Client
	held      map[string]*polylock.Lock
	runs      map[string]*polylock.Attempt
	slots     map[string]int
	attempts  map[string]*attempt
	lostAt    map[string]time.Time
}

func TestScenarios(t *testing.T) {
	path := os.Getenv("POLYLOCK_VECTORS")
	if path == "" {
		path = "../vectors.json"
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all vectors
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, one := range all.Scenarios {
		steps := one.Steps
		t.Run(one.Name, func(t *testing.T) {
			directory := t.TempDir()
			running := start(t, directory)
			s := &scenario{
				T: t, directory: directory, server: running, locks: polylock.New(running.url), held: map[string]*polylock.Lock{}, runs: map[string]*polylock.Attempt{},
				slots: map[string]int{}, attempts: map[string]*attempt{}, lostAt: map[string]time.Time{},
			}
			for _, step := range steps {
				s.run(step)
			}
		})
	}
}

func ms(number int) time.Duration { return time.Duration(number) * time.Millisecond }

func (step step) wait() time.Duration {
	switch {
	case step.WaitMs == nil:
		return 0
	case *step.WaitMs == 0:
		return polylock.NoWait
	default:
		return ms(*step.WaitMs)
	}
}

func (s *scenario) attempt(step step, name string) (*polylock.Lock, error) {
	s.slots[name] = step.Slots
	options := polylock.Options{Mode: step.Mode, Label: step.Label, TTL: ms(step.TTLMs), Slots: step.Slots, Also: step.Also}
	if step.Campaign {
		return s.locks.Campaign(background, step.Lock, options)
	}
	options.Wait = step.wait()
	return s.locks.Acquire(background, step.Lock, options)
}

func kind(err error) string {
	var problem *polylock.Problem
	switch {
	case err == nil:
		return ""
	case errors.Is(err, polylock.ErrNotAcquired):
		return "not-acquired"
	case errors.Is(err, polylock.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, polylock.ErrLost):
		return "lost"
	case errors.As(err, &problem):
		return "refused"
	default:
		return err.Error()
	}
}

func (s *scenario) check(holds bool, step step) {
	s.Helper()
	if !holds {
		s.Fatalf("%+v", step)
	}
}

func (s *scenario) run(step step) {
	s.Helper()
	switch {
	case step.Acquire != "":
		lock, err := s.attempt(step, step.Acquire)
		if kind(err) != step.Error {
			s.Fatalf("%+v: %v", step, err)
		}
		if err == nil {
			s.held[step.Acquire] = lock
		}
	case step.Begin != "":
		attempt := &attempt{granted: make(chan *polylock.Lock, 1)}
		s.attempts[step.Begin] = attempt
		go func() {
			lock, err := s.attempt(step, step.Begin)
			attempt.at = time.Now()
			if err != nil {
				s.Error(err)
			}
			attempt.granted <- lock
		}()
	case step.Waits != "":
		s.check(len(s.attempts[step.Waits].granted) == 0, step)
	case step.Finish != "":
		select {
		case lock := <-s.attempts[step.Finish].granted:
			s.check(lock != nil, step)
			s.held[step.Finish] = lock
		case <-time.After(ms(step.WithinMs)):
			s.check(false, step)
		}
	case step.Held != "":
		s.check(s.held[step.Held].EnsureHeld() == nil && s.held[step.Held].Remaining() > 0, step)
	case step.Ended != "":
		s.check(s.held[step.Ended].EnsureHeld() != nil && s.held[step.Ended].Remaining() == 0, step)
	case step.Lost != "":
		lock := s.held[step.Lost]
		select {
		case <-lock.Lost():
			s.lostAt[step.Lost] = time.Now()
		case <-time.After(ms(step.WithinMs)):
			s.check(false, step)
		}
		err := lock.EnsureHeld()
		s.check(errors.Is(err, polylock.ErrLost) && strings.HasSuffix(err.Error(), ": "+step.Reason), step)
	case step.Once != "":
		job := polylock.Job{Every: ms(step.EveryMs), Retries: step.Retries, TTL: ms(step.TTLMs), Wait: step.wait()}
		run, err := s.locks.Once(background, step.Job, job)
		if kind(err) != step.Error {
			s.Fatalf("%+v: %v", step, err)
		}
		if run == nil {
			s.check(step.Attempt == 0, step)
			return
		}
		s.check(run.Number == step.Attempt, step)
		s.runs[step.Once], s.held[step.Once] = run, run.Lock
	case step.Succeed != "":
		err := s.runs[step.Succeed].Succeeded(background)
		s.check(kind(err) == step.Error, step)
	case step.Fail != "":
		err := s.runs[step.Fail].Failed(background, step.Because)
		s.check(kind(err) == step.Error, step)
	case step.Tokens != "":
		tokens := s.held[step.Tokens].FencingTokens
		s.check(len(tokens) == len(step.Of), step)
		for _, name := range step.Of {
			s.check(tokens[name] != 0, step)
		}
	case step.Release != "":
		s.held[step.Release].Release()
	case step.Token != "":
		s.check(s.held[step.Token].FencingToken > s.held[step.Above].FencingToken, step)
	case step.OtherSlot != "":
		one, other := s.held[step.OtherSlot].Slot, s.held[step.Than].Slot
		slots := s.slots[step.OtherSlot]
		s.check(one != other && one >= 0 && one < slots && other >= 0 && other < slots, step)
	case step.AfterLoss != "":
		s.check(s.attempts[step.AfterLoss].at.After(s.lostAt[step.Of[0]]), step)
	case step.Break != "":
		s.check(exec.Command(program(), "break", "-S", s.server.store, "--yes", step.Break).Run() == nil, step)
	case step.Server == "start":
		s.server = startOn(s.T, s.directory, strings.TrimPrefix(s.server.url, "http://"))
	case step.Server == "kill":
		s.server.process.Kill()
		s.server.process.Wait()
	case step.Server == "stop":
		s.server.process.Signal(syscall.SIGSTOP)
	case step.Server == "continue":
		s.server.process.Signal(syscall.SIGCONT)
	default:
		s.check(step.PauseMs > 0, step)
		time.Sleep(ms(step.PauseMs))
	}
}
