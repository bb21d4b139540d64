package polylock

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// line is an event of a stream.
type line struct {
	Event         string            `json:"event"`
	FencingToken  uint64            `json:"fencing_token"`
	FencingTokens map[string]uint64 `json:"fencing_tokens"`
	ID            string            `json:"id"`
	IDs           map[string]string `json:"ids"`
	TTLMs         int64             `json:"ttl_ms"`
	Slot          *int              `json:"slot"`
	Attempt       int               `json:"attempt"`
	Until         string            `json:"until"`
	Reason        string            `json:"reason"`
	Problem       *Problem          `json:"problem"`
}

// The age after which the clock of a server is read again, at a grant and at a renewal, and the time limit for that.
const (
	grantAge     = time.Second
	renewalAge   = 30 * time.Second
	clockTimeout = 2 * time.Second
)

// replyTimeout is the silence before the reply to a request that waits, which begins at once.
const replyTimeout = 5 * time.Second

// renewalTimeout is the silence after which a server is given up that is to renew or to release a hold, and releaseTimeout the time limit for a release.
const (
	renewalTimeout = time.Second
	releaseTimeout = 5 * time.Second
)

// longestExpiry is the longest time for which a message counts, and attempts the number of attempts of one that a server finds too late, because it does not know its
// clock.
const (
	longestExpiry = 5 * time.Second
	attempts      = 3
)

// stream is a stream after the line that ends the wait.
type stream struct {
	first  *line
	client *Client
	server string
	clock  serverClock
	lines  *bufio.Scanner
	body   io.Closer
	cancel func()
}

// lasts returns the time from clock.sent for which a lease lasts at least. The clock of the server is read again after this age: the two clocks drift, and the first
// request may have been late.
func (opened *stream) lasts(until string, longestAge time.Duration) (serverClock, time.Duration, error) {
	if since(opened.clock.sent) > longestAge {
		ctx, cancel := context.WithTimeout(context.Background(), clockTimeout)
		defer cancel()
		sent := time.Now()
		if response, err := opened.client.send(ctx, http.MethodGet, opened.server+"/healthz", nil); err == nil {
			response.Body.Close()
			clock, err := newServerClock(sent, response.Header.Get("polylock-clock"))
			// Behind a proxy, another server may reply.
			if err == nil && clock.server == opened.clock.server {
				opened.clock = clock
			}
		}
	}
	lasts, err := opened.clock.lasts(until)
	return opened.clock, lasts, err
}

func (opened *stream) close() {
	opened.cancel()
	opened.body.Close()
}

// acquire waits for a lock, over all servers together. It returns nil if the job is not due.
func (client *Client) acquire(ctx context.Context, name, mode, path string, body map[string]any, wait time.Duration) (*Lock, error) {
	if _, isSet := body["owner"]; !isSet {
		body["owner"] = owner()
	}
	begin := time.Now()
	for {
		var opened *stream
		err := client.first(ctx, &client.used, func(server string) (err error) {
			if wait != 0 {
				body["wait"] = milliseconds(wait - since(begin))
			}
			opened, err = client.openOn(ctx, server, path, body, wait)
			return err
		})
		if err != nil {
			return nil, err
		}
		if opened.first.Event == "skipped" {
			opened.close()
			return nil, nil
		}
		lock, err := newLock(name, mode, opened)
		if err != nil || lock.Remaining() > 0 && ctx.Err() == nil {
			return lock, err
		}
		// Its lease had ended when the grant arrived, or the caller does not wait any more.
		lock.Release()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// owner returns the owner of the holds that name none: this process.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%.200s:%d", host, os.Getpid())
}

// post sends a request that may be repeated.
func (client *Client) post(ctx context.Context, path string, body map[string]any) error {
	return client.repeat(ctx, &client.used, http.MethodPost, path, body, client.Silence)
}

// delete sends a request that may be repeated.
func (client *Client) delete(ctx context.Context, used *atomic.Int32, path string) error {
	return client.repeat(ctx, used, http.MethodDelete, path, nil, renewalTimeout)
}

func (client *Client) repeat(ctx context.Context, used *atomic.Int32, method, path string, body map[string]any, silence time.Duration) error {
	return client.first(ctx, used, func(server string) error {
		limited, cancel := context.WithTimeout(ctx, silence)
		defer cancel()
		response, err := client.send(limited, method, server+path, body)
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
}

// renew renews a hold, and returns its lease. It returns [ErrLost] if the hold has ended.
func (client *Client) renew(ctx context.Context, used *atomic.Int32, path string, body map[string]any) (clock serverClock, lasts time.Duration, err error) {
	err = client.first(ctx, used, func(server string) error {
		limited, cancel := context.WithTimeout(ctx, renewalTimeout)
		defer cancel()
		sent := time.Now()
		response, err := client.send(limited, http.MethodPut, server+path, body, "If-Match", "*")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		renewed := &line{}
		if err := json.NewDecoder(response.Body).Decode(renewed); err != nil {
			return &goneError{err}
		}
		if clock, err = newServerClock(sent, response.Header.Get("polylock-clock")); err != nil {
			return err
		}
		lasts, err = clock.lasts(renewed.Until)
		return err
	})
	return clock, lasts, err
}

// first calls send with each server until one has replied, beginning with used, the one that has replied last.
func (client *Client) first(ctx context.Context, used *atomic.Int32, send func(server string) error) error {
	failure := errors.New("there is no server")
	first := int(used.Load())
	for number := range client.URLs {
		next := (first + number) % len(client.URLs)
		server, err := serverURL(client.URLs[next])
		if err != nil {
			return err
		}
		err = send(server)
		if err == nil {
			used.Store(int32(next))
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// A server that shuts down, too: another one may do better.
		var gone *goneError
		if !errors.As(err, &gone) && !errors.Is(err, ErrUnavailable) {
			return err
		}
		failure = err
	}
	return fmt.Errorf("%w: %s: %v", ErrUnavailable, strings.Join(client.URLs, ", "), failure)
}

// goneError means that another server may do better.
type goneError struct{ cause error }

func (err *goneError) Error() string { return err.cause.Error() }

func (client *Client) openOn(ctx context.Context, server, path string, body map[string]any, wait time.Duration) (*stream, error) {
	// The stream outlives the context of the caller, which limits the wait alone.
	open, cancel := context.WithCancel(context.Background())
	stop := make(chan struct{})
	alive := make(chan struct{}, 1)
	silence := client.Silence
	if wait != NoWait && silence > replyTimeout {
		silence = replyTimeout
	}
	go client.limit(ctx, stop, alive, silence, cancel)
	opened, err := client.readGrant(open, alive, server, path, body)
	close(stop)
	if err != nil {
		cancel()
		return nil, err
	}
	opened.cancel = cancel
	return opened, nil
}

// limit cancels a request whose context ends, or whose server is silent, until stop.
func (client *Client) limit(ctx context.Context, stop, alive <-chan struct{}, silence time.Duration, cancel func()) {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			cancel()
			return
		case <-timer.C:
			cancel()
			return
		case <-alive:
			if !timer.Stop() {
				select {
				case <-timer.C:
				default:
				}
			}
			timer.Reset(client.Silence)
		}
	}
}

// send returns the reply to a request, or its problem.
func (client *Client) send(ctx context.Context, method, url string, body map[string]any, header ...string) (*http.Response, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	for attempt := 0; attempt < attempts; attempt++ {
		response, problem, err := client.sendOnce(ctx, method, url, text, header...)
		if err != nil || problem == nil {
			return response, err
		}
		if !strings.HasSuffix(problem.Type, ":late") {
			return nil, problem.asError()
		}
	}
	return nil, &goneError{errors.New("the server finds each message too late")}
}

// sendOnce returns the reply to a request, or its problem.
func (client *Client) sendOnce(ctx context.Context, method, url string, text []byte, header ...string) (*http.Response, *Problem, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(text))
	if err != nil {
		return nil, nil, err
	}
	limit := longestExpiry
	if deadline, isLimited := ctx.Deadline(); isLimited && time.Until(deadline) < limit {
		limit = time.Until(deadline)
	}
	if expires := client.clocks.expires(limit); expires != "" {
		request.Header.Set("Polylock-Expires", expires)
	}
	request.Header.Set("Content-Type", "application/json")
	if len(header) == 2 {
		request.Header.Set(header[0], header[1])
	}
	if client.Token != "" {
		request.Header.Set("Authorization", "Bearer "+client.Token)
	}
	response, err := client.HTTP.Do(request)
	if err != nil {
		return nil, nil, &goneError{err}
	}
	client.clocks.observe(response.Header.Get("polylock-clock"))
	if response.StatusCode >= 300 {
		defer response.Body.Close()
		problem := &Problem{}
		if json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(problem) != nil || problem.Status == 0 {
			problem.Status = response.StatusCode
		}
		return nil, problem, nil
	}
	return response, nil, nil
}

func (client *Client) readGrant(ctx context.Context, alive chan<- struct{}, server, path string, body map[string]any) (*stream, error) {
	sent := time.Now()
	response, err := client.send(ctx, http.MethodPost, server+path, body)
	if err != nil {
		return nil, err
	}
	clock, err := newServerClock(sent, response.Header.Get("polylock-clock"))
	if err != nil {
		response.Body.Close()
		return nil, err
	}
	alive <- struct{}{}
	opened := &stream{client: client, server: server, clock: clock, lines: bufio.NewScanner(response.Body), body: response.Body}
	if opened.first, err = opened.wait(alive); err != nil {
		response.Body.Close()
		return nil, err
	}
	return opened, nil
}

// wait returns the line that ends the wait.
func (opened *stream) wait(alive chan<- struct{}) (*line, error) {
	for {
		next, err := nextLine(opened.lines, alive)
		if err != nil {
			return nil, &goneError{err}
		}
		switch next.Event {
		case "queued":
		case "failed":
			return nil, firstProblem(next.Problem).asError()
		default:
			return next, nil
		}
	}
}

func firstProblem(problem *Problem) *Problem {
	if problem == nil {
		return &Problem{Title: "the lock was not acquired"}
	}
	return problem
}

// nextLine returns the next event. Empty lines show that the server is alive.
func nextLine(lines *bufio.Scanner, alive chan<- struct{}) (*line, error) {
	for lines.Scan() {
		select {
		case alive <- struct{}{}:
		default:
		}
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		next := &line{}
		if err := json.Unmarshal(lines.Bytes(), next); err != nil {
			return nil, err
		}
		return next, nil
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("the server has ended")
}

func milliseconds(duration time.Duration) string {
	if duration < 0 {
		duration = 0
	}
	return fmt.Sprintf("%dms", duration.Milliseconds())
}
