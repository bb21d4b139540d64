package polylock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// tick is the longest time of one timer: a suspended machine stops it.
const tick = 500 * time.Millisecond

// Lock is a lock that is held, until Release or its loss.
type Lock struct {
	// Name is the name of the lock.
	Name string
	// FencingToken is greater than all earlier ones of this lock.
	FencingToken uint64
	// FencingTokens has the fencing token of each lock by its name, if there are several.
	FencingTokens map[string]uint64
	// Slot is the number of the slot of a semaphore, from 0.
	Slot int

	stream *stream
	lost   chan struct{}
	ended  chan struct{}

	mutex sync.Mutex
	// The lease lasts for this time from clock.sent.
	clock serverClock
	lasts time.Duration
	err   error
}

func newLock(name string, opened *stream) (*Lock, error) {
	granted := opened.first
	clock, lasts, err := opened.lasts(granted.Until, grantAge)
	if err != nil {
		opened.close()
		return nil, err
	}
	tokens := granted.FencingTokens
	if tokens == nil {
		tokens = map[string]uint64{name: granted.FencingToken}
	}
	lock := &Lock{
		Name: name, FencingToken: granted.FencingToken, FencingTokens: tokens, Slot: granted.Slot, stream: opened, clock: clock, lasts: lasts,
		lost: make(chan struct{}), ended: make(chan struct{}),
	}
	// The reader waits for the server, and the watch for the deadline: a silent server delays no loss.
	go lock.read()
	go lock.watch()
	return lock, nil
}

// Remaining returns the time until the deadline, unless the lock is renewed before; 0 once it is lost or released.
func (lock *Lock) Remaining() time.Duration {
	lock.mutex.Lock()
	defer lock.mutex.Unlock()
	return lock.remaining()
}

func (lock *Lock) remaining() time.Duration {
	left := lock.lasts - since(lock.clock.sent)
	if lock.err != nil || left < 0 {
		return 0
	}
	return left
}

// EnsureHeld returns nil if the lock is held, and otherwise [ErrLost] or [ErrReleased]. Call it before a side effect.
func (lock *Lock) EnsureHeld() error {
	lock.mutex.Lock()
	defer lock.mutex.Unlock()
	if lock.remaining() > 0 {
		return nil
	}
	lock.end(fmt.Errorf("%w: %s: deadline", ErrLost, lock.Name))
	return lock.err
}

// Lost returns a channel that is closed when the lock is lost, at the deadline at the latest. A release does not close it.
func (lock *Lock) Lost() <-chan struct{} {
	return lock.lost
}

// Context returns a copy of parent that also ends when the lock is lost or released.
func (lock *Lock) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		defer cancel()
		select {
		case <-lock.ended:
		case <-ctx.Done():
		}
	}()
	return ctx
}

// Release releases the lock. It may be called again.
func (lock *Lock) Release() {
	lock.mutex.Lock()
	defer lock.mutex.Unlock()
	lock.end(ErrReleased)
	// The server releases a lock whose stream is closed.
	lock.stream.cancel()
}

// end records the end of the hold, once. The mutex is held.
func (lock *Lock) end(err error) {
	if lock.err != nil {
		return
	}
	lock.err = err
	if err != ErrReleased {
		close(lock.lost)
	}
	close(lock.ended)
}

func (lock *Lock) read() {
	defer lock.stream.body.Close()
	for {
		next, err := nextLine(lock.stream.lines, nil)
		if err != nil {
			// Without the server, the lock is held until its deadline.
			return
		}
		var clock serverClock
		var lasts time.Duration
		if next.Event == "renewed" {
			if clock, lasts, err = lock.stream.lasts(next.Until, renewalAge); err != nil {
				continue
			}
		}
		lock.mutex.Lock()
		switch next.Event {
		case "renewed":
			// A renewal after the deadline revives nothing.
			if left := lock.remaining(); left > 0 && lasts-since(clock.sent) > left {
				lock.clock, lock.lasts = clock, lasts
			}
		case "lost":
			lock.end(fmt.Errorf("%w: %s: %s", ErrLost, lock.Name, next.Reason))
		}
		lock.mutex.Unlock()
	}
}

func (lock *Lock) watch() {
	for {
		left := lock.Remaining()
		if left == 0 {
			// It does nothing after a release.
			_ = lock.EnsureHeld()
			return
		}
		if left > tick {
			left = tick
		}
		select {
		case <-time.After(left):
		case <-lock.ended:
			return
		}
	}
}
