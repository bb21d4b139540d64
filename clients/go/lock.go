package polylock

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net/url"
	"sync"
	"sync/atomic"
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
	ids    map[string]string
	hold   map[string]any
	ttl    time.Duration
	lost   chan struct{}
	ended  chan struct{}

	// The server that has replied last: that of the stream, which is notified of a break at once as long as it has the renewals.
	used atomic.Int32

	// The time that is left at a renewal.
	due time.Duration

	mutex sync.Mutex
	// The lease lasts for this time from clock.sent.
	clock serverClock
	lasts time.Duration
	err   error
	// True once Release was called.
	released bool
	renewing bool
}

// newLock returns the lock of a grant.
func newLock(name, mode string, opened *stream) (*Lock, error) {
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
	ids := granted.IDs
	if ids == nil {
		ids = map[string]string{name: granted.ID}
	}
	hold := texts(map[string]string{"mode": mode})
	slot := 0
	if granted.Slot != nil {
		slot = *granted.Slot
		hold["slot"] = slot
	}
	lock := &Lock{
		Name: name, FencingToken: granted.FencingToken, FencingTokens: tokens, Slot: slot, ids: ids, hold: hold,
		ttl: time.Duration(granted.TTLMs) * time.Millisecond, stream: opened, clock: clock, lasts: lasts,
		lost: make(chan struct{}), ended: make(chan struct{}),
	}
	// Random, so that clients with grants of the same time renew one after the other.
	random := rand.New(rand.NewSource(time.Now().UnixNano()))
	lock.due = time.Duration((0.6 + 0.07*random.Float64()) * float64(lock.ttl))
	for index, url := range opened.client.URLs {
		if server, err := serverURL(url); err == nil && server == opened.server {
			lock.used.Store(int32(index))
		}
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

// Release releases the lock, within five seconds. It may be called again. If no server can be reached, the release is repeated in the background until the lease has ended.
func (lock *Lock) Release() {
	lock.mutex.Lock()
	isFirst := !lock.released
	lock.released = true
	// A renewal that is on its way may extend the lease.
	limit := lock.lasts - since(lock.clock.sent) + lock.ttl
	lock.end(ErrReleased)
	lock.mutex.Unlock()
	if isFirst {
		if unreleased := lock.deleteAll(lock.ids); len(unreleased) > 0 {
			go lock.releaseLater(unreleased, limit)
		}
	}
	lock.stream.cancel()
}

// deleteAll releases these locks, and returns those that may have to be released again.
func (lock *Lock) deleteAll(ids map[string]string) map[string]string {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	unreleased := map[string]string{}
	for name, id := range ids {
		query := url.Values{"name": {name}}
		for key, value := range lock.hold {
			query.Set(key, fmt.Sprint(value))
		}
		// The end of a stream is no release: the network may have cut it.
		err := lock.stream.client.delete(ctx, &lock.used, "/v1/holds/"+id+"?"+query.Encode())
		if errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			unreleased[name] = id
		}
	}
	return unreleased
}

// releaseLater repeats a release for this time.
func (lock *Lock) releaseLater(unreleased map[string]string, limit time.Duration) {
	begin := time.Now()
	for pause := 100 * time.Millisecond; since(begin)+pause < limit && len(unreleased) > 0; pause *= 2 {
		if pause > longestPause {
			pause = longestPause
		}
		time.Sleep(pause)
		unreleased = lock.deleteAll(unreleased)
	}
}

// end records the end of the hold, once. The mutex is held.
func (lock *Lock) end(err error) {
	if lock.err != nil {
		return
	}
	lock.err = err
	if err != ErrReleased {
		close(lock.lost)
		lock.stream.cancel()
	}
	close(lock.ended)
}

func (lock *Lock) read() {
	defer lock.stream.body.Close()
	for {
		next, err := nextLine(lock.stream.lines, nil)
		if err != nil {
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
			lock.extend(clock, lasts)
		case "lost":
			// The server's own deadline says nothing: this client may have renewed the lock elsewhere.
			if next.Reason != "deadline" {
				lock.end(fmt.Errorf("%w: %s: %s", ErrLost, lock.Name, next.Reason))
			}
		}
		lock.mutex.Unlock()
	}
}

// extend records a renewal. The mutex is held.
func (lock *Lock) extend(clock serverClock, lasts time.Duration) {
	// A renewal after the deadline revives nothing.
	if left := lock.remaining(); left > 0 && lasts-since(clock.sent) > left {
		lock.clock, lock.lasts = clock, lasts
	}
}

// renew renews the lock, on any server.
func (lock *Lock) renew() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	clock, lasts, err := lock.renewAll(lock.Context(ctx))
	lock.mutex.Lock()
	defer lock.mutex.Unlock()
	lock.renewing = false
	var lost *lostError
	switch {
	case errors.As(err, &lost):
		lock.end(fmt.Errorf("%w: %s: %s", ErrLost, lock.Name, lost.problem.Reason))
	case err == nil:
		lock.extend(clock, lasts)
	}
}

// isDue returns true if the lock is to be renewed now.
func (lock *Lock) isDue() bool {
	lock.mutex.Lock()
	defer lock.mutex.Unlock()
	left := lock.remaining()
	isDue := left > 0 && left < lock.due && !lock.renewing
	lock.renewing = lock.renewing || isDue
	return isDue
}

// renewAll renews all locks, and returns the lease that ends first.
func (lock *Lock) renewAll(ctx context.Context) (first serverClock, lasts time.Duration, err error) {
	isFirst := true
	for name, id := range lock.ids {
		body := map[string]any{"name": name, "ttl": milliseconds(lock.ttl)}
		for key, value := range lock.hold {
			body[key] = value
		}
		clock, time, err := lock.stream.client.renew(ctx, &lock.used, "/v1/holds/"+id, body)
		if err != nil {
			return clock, 0, err
		}
		if isFirst || time-since(clock.sent) < lasts-since(first.sent) {
			first, lasts, isFirst = clock, time, false
		}
	}
	return first, lasts, nil
}

func (lock *Lock) watch() {
	for {
		left := lock.Remaining()
		if left == 0 {
			// It does nothing after a release.
			_ = lock.EnsureHeld()
			return
		}
		if lock.isDue() {
			go lock.renew()
		}
		for _, longest := range []time.Duration{tick, lock.ttl/10 + time.Millisecond} {
			if left > longest {
				left = longest
			}
		}
		select {
		case <-time.After(left):
		case <-lock.ended:
			return
		}
	}
}
