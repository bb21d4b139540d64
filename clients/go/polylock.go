// Package polylock acquires locks through the lock service of polylock, with fencing tokens and a signal of loss.
//
//	locks := polylock.New("http://127.0.0.1:7420")
//	lock, err := locks.Acquire(ctx, "orders/42", polylock.Options{})
//	if err != nil {
//		return err
//	}
//	defer lock.Release()
//	work(lock.Context(ctx), lock.FencingToken) // the context ends when the lock is lost
package polylock

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// DefaultURL is the address of a server on this machine.
const DefaultURL = "http://127.0.0.1:7420"

// NoWait is the time to wait of a request that does not wait.
const NoWait = -1 * time.Nanosecond

// connectTimeout limits the time to connect to one server.
const connectTimeout = 5 * time.Second

// Client is the lock service at some URLs. All servers must serve the same store. The fields are not changed while it is used.
type Client struct {
	// URLs are the servers; a request is sent to the first one that replies.
	URLs []string
	// Token is the one of this caller, if the servers require one.
	Token string
	// Silence is the time without a line from a server after which a request that waits is sent to the next one: more than the five seconds between two
	// lines of a server.
	Silence time.Duration
	// HTTP sends the requests. It must have no time limit.
	HTTP *http.Client
}

// New returns a client of these servers; of the one on this machine without a URL.
func New(urls ...string) *Client {
	if len(urls) == 0 {
		urls = []string{DefaultURL}
	}
	dialer := &net.Dialer{Timeout: connectTimeout}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: connectTimeout, ForceAttemptHTTP2: true}
	return &Client{URLs: urls, Silence: 15 * time.Second, HTTP: &http.Client{Transport: transport}}
}

// Options are the settings of a request. The zero value requests an exclusive lock, with the lease of the server, and waits without a limit.
type Options struct {
	// Mode is EX (exclusive), PR (shared) or another mode of the store.
	Mode string
	// TTL is the lease: the time until the lock of a dead holder is free.
	TTL time.Duration
	// Wait is the longest time to wait: no limit by default, and [NoWait] for a request that does not wait.
	Wait time.Duration
	// Slots is the number of slots of the semaphore of this name, of which one is to be acquired. All requests state the same number.
	Slots int
	// Owner and Label are shown to those that inspect the lock.
	Owner, Label string
}

// Acquire waits for the lock. It returns [ErrNotAcquired] if another request holds it and the time to wait is over, [ErrUnavailable] if no server can be reached, a
// [*Problem] for invalid settings, and the error of the context if that ends.
func (client *Client) Acquire(ctx context.Context, name string, options Options) (*Lock, error) {
	begin := time.Now()
	failure := errors.New("there is no server")
	for _, server := range client.URLs {
		lock, err := client.acquireOn(ctx, server, name, options, since(begin))
		if err == nil {
			return lock, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var gone *goneError
		if !errors.As(err, &gone) {
			return nil, err
		}
		failure = gone.cause
	}
	return nil, fmt.Errorf("%w: %s: %v", ErrUnavailable, strings.Join(client.URLs, ", "), failure)
}

// firstOf returns the first error that is not nil.
func firstOf(one, other error) error {
	if one != nil {
		return one
	}
	return other
}

// goneError means that another server may do better.
type goneError struct{ cause error }

func (err *goneError) Error() string { return err.cause.Error() }

// line is an event of a stream.
type line struct {
	Event        string   `json:"event"`
	FencingToken uint64   `json:"fencing_token"`
	Slot         int      `json:"slot"`
	Until        string   `json:"until"`
	Reason       string   `json:"reason"`
	Problem      *Problem `json:"problem"`
}

func (client *Client) acquireOn(ctx context.Context, server, name string, options Options, waited time.Duration) (*Lock, error) {
	body := map[string]any{}
	for key, text := range map[string]string{"mode": options.Mode, "owner": options.Owner, "label": options.Label} {
		if text != "" {
			body[key] = text
		}
	}
	if options.TTL != 0 {
		body["ttl"] = milliseconds(options.TTL)
	}
	if options.Wait != 0 {
		body["wait"] = milliseconds(options.Wait - waited)
	}
	if options.Slots != 0 {
		body["slots"] = options.Slots
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	// The stream outlives the context of the caller, which limits the wait alone.
	stream, cancel := context.WithCancel(context.Background())
	stop := make(chan struct{})
	alive := make(chan struct{}, 1)
	go client.limit(ctx, stop, alive, cancel)
	lock, err := client.readGrant(stream, cancel, alive, server, name, text)
	close(stop)
	if err != nil {
		cancel()
		return nil, err
	}
	if ctx.Err() != nil {
		lock.Release()
		return nil, ctx.Err()
	}
	return lock, nil
}

// limit cancels a request whose context ends, or whose server is silent, until stop.
func (client *Client) limit(ctx context.Context, stop, alive <-chan struct{}, cancel func()) {
	timer := time.NewTimer(client.Silence)
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

func (client *Client) readGrant(stream context.Context, cancel func(), alive chan<- struct{}, server, name string, body []byte) (*Lock, error) {
	path := strings.TrimSuffix(server, "/") + "/v1/locks/" + url.PathEscape(name)
	request, err := http.NewRequestWithContext(stream, http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if client.Token != "" {
		request.Header.Set("Authorization", "Bearer "+client.Token)
	}
	sent := time.Now()
	response, err := client.HTTP.Do(request)
	if err != nil {
		return nil, &goneError{err}
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		problem := &Problem{}
		if json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(problem) != nil || problem.Status == 0 {
			problem.Status = response.StatusCode
		}
		return nil, problem.asError()
	}
	clock, err := newServerClock(sent, response.Header.Get("polylock-clock"))
	if err != nil {
		response.Body.Close()
		return nil, err
	}
	lines := bufio.NewScanner(response.Body)
	for {
		next, err := nextLine(lines, alive)
		if err != nil {
			response.Body.Close()
			return nil, &goneError{err}
		}
		switch next.Event {
		case "granted":
			return newLock(name, clock, next, lines, response.Body, cancel)
		case "failed":
			response.Body.Close()
			return nil, firstProblem(next.Problem).asError()
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
	return nil, firstOf(lines.Err(), errors.New("the server has ended"))
}

func milliseconds(duration time.Duration) string {
	if duration < 0 {
		duration = 0
	}
	return fmt.Sprintf("%dms", duration.Milliseconds())
}
