package polylock

import (
	"fmt"
	"strconv"
	"strings"
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

func parseServerTime(text string) (server string, us int64, err error) {
	server, number, found := strings.Cut(text, ";")
	if us, err = strconv.ParseInt(number, 10, 64); !found || err != nil {
		return "", 0, fmt.Errorf("%q is not a time of a server", text)
	}
	return server, us, nil
}
