package polylock

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// drift is the fraction by which two clocks may differ.
const drift = 1000

// since returns the time since a moment; by the time of day, if that has gone on while the machine was suspended.
func since(moment time.Time) time.Duration {
	now := time.Now()
	// The monotonic clock stands still during a suspension. Round removes its reading.
	monotonic, wall := now.Sub(moment), now.Round(0).Sub(moment.Round(0))
	if wall > monotonic {
		return wall
	}
	return monotonic
}

// serverClock is the clock of a server, from the header of the reply to a request.
//
// The request was sent at sent, and the header contains a later time of the server. So a lease until a time by the clock of the server lasts from sent for
// at least the difference, less the drift between the two clocks.
type serverClock struct {
	sent   time.Time
	server string
	us     int64
}

func newServerClock(sent time.Time, header string) (serverClock, error) {
	server, us, err := parseServerTime(header)
	return serverClock{sent, server, us}, err
}

// lasts returns the time from sent for which a lease lasts at least.
func (clock serverClock) lasts(until string) (time.Duration, error) {
	server, us, err := parseServerTime(until)
	if err != nil {
		return 0, err
	}
	if server != clock.server {
		return 0, fmt.Errorf("%q is a time of another server", until)
	}
	lasts := time.Duration(us-clock.us) * time.Microsecond
	if lasts > 0 {
		lasts -= lasts / drift
	}
	return lasts, nil
}

// knownClocks is the number of servers whose clocks are remembered.
const knownClocks = 8

// clocks are the clocks of the servers in their last replies, by which messages expire: a server refuses one that arrives after its client has given it up.
//
// At the time of its reply, the clock of a server shows at least the time in the header.
type clocks struct {
	mutex  sync.Mutex
	latest []receivedClock
}

type receivedClock struct {
	received time.Time
	server   string
	us       int64
}

// observe records the clock of a server from a reply that has just arrived.
func (clocks *clocks) observe(header string) {
	server, us, err := parseServerTime(header)
	if err != nil {
		return
	}
	clocks.mutex.Lock()
	defer clocks.mutex.Unlock()
	kept := []receivedClock{{time.Now(), server, us}}
	for _, other := range clocks.latest {
		if other.server != server && len(kept) < knownClocks {
			kept = append(kept, other)
		}
	}
	clocks.latest = kept
}

// expires returns the header of a message that is given up after limit, for whichever server receives it. It is empty before the first reply.
func (clocks *clocks) expires(limit time.Duration) string {
	clocks.mutex.Lock()
	defer clocks.mutex.Unlock()
	var times []string
	for _, clock := range clocks.latest {
		// Not by the time of day: that may have been set, and then the expiry would be late.
		passed := time.Since(clock.received)
		us := clock.us + (passed - passed/drift + limit).Microseconds()
		times = append(times, fmt.Sprintf("%s;%d", clock.server, us))
	}
	return strings.Join(times, ", ")
}

func parseServerTime(text string) (server string, us int64, err error) {
	server, number, found := strings.Cut(text, ";")
	if us, err = strconv.ParseInt(number, 10, 64); !found || err != nil {
		return "", 0, fmt.Errorf("%q is not a time of a server", text)
	}
	return server, us, nil
}
