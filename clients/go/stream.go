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
	"strings"
	"time"
)

// line is an event of a stream.
type line struct {
	Event         string            `json:"event"`
	FencingToken  uint64            `json:"fencing_token"`
	FencingTokens map[string]uint64 `json:"fencing_tokens"`
	Slot          int               `json:"slot"`
	Attempt       int               `json:"attempt"`
	Until         string            `json:"until"`
	Reason        string            `json:"reason"`
	Problem       *Problem          `json:"problem"`
}

// stream is a stream after the line that ends the wait.
type stream struct {
	first  *line
	clock  serverClock
	lines  *bufio.Scanner
	body   io.Closer
	cancel func()
}

func (opened *stream) close() {
	opened.cancel()
	opened.body.Close()
}

// open sends a request to the first server that replies, and waits, over all servers together.
func (client *Client) open(ctx context.Context, path string, body map[string]any, wait time.Duration) (*stream, error) {
	begin := time.Now()
	var opened *stream
	err := client.first(ctx, func(server string) (err error) {
		if wait != 0 {
			body["wait"] = milliseconds(wait - since(begin))
		}
		opened, err = client.openOn(ctx, server+path, body)
		return err
	})
	return opened, err
}

// post sends a request that may be repeated.
func (client *Client) post(ctx context.Context, path string, body map[string]any) error {
	return client.first(ctx, func(server string) error {
		limited, cancel := context.WithTimeout(ctx, client.Silence)
		defer cancel()
		response, err := client.send(limited, server+path, body)
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
}

// first calls send with each server until one has replied.
func (client *Client) first(ctx context.Context, send func(server string) error) error {
	failure := errors.New("there is no server")
	for _, server := range client.URLs {
		err := send(strings.TrimSuffix(server, "/"))
		if err == nil {
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

func (client *Client) openOn(ctx context.Context, url string, body map[string]any) (*stream, error) {
	// The stream outlives the context of the caller, which limits the wait alone.
	open, cancel := context.WithCancel(context.Background())
	stop := make(chan struct{})
	alive := make(chan struct{}, 1)
	go client.limit(ctx, stop, alive, cancel)
	opened, err := client.readGrant(open, alive, url, body)
	close(stop)
	if err != nil {
		cancel()
		return nil, err
	}
	opened.cancel = cancel
	if ctx.Err() != nil {
		opened.close()
		return nil, ctx.Err()
	}
	return opened, nil
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

// send returns the reply to a request, or its problem.
func (client *Client) send(ctx context.Context, url string, body map[string]any) (*http.Response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if client.Token != "" {
		request.Header.Set("Authorization", "Bearer "+client.Token)
	}
	response, err := client.HTTP.Do(request)
	if err != nil {
		return nil, &goneError{err}
	}
	if response.StatusCode >= 300 {
		defer response.Body.Close()
		problem := &Problem{}
		if json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(problem) != nil || problem.Status == 0 {
			problem.Status = response.StatusCode
		}
		return nil, problem.asError()
	}
	return response, nil
}

func (client *Client) readGrant(ctx context.Context, alive chan<- struct{}, url string, body map[string]any) (*stream, error) {
	sent := time.Now()
	response, err := client.send(ctx, url, body)
	if err != nil {
		return nil, err
	}
	clock, err := newServerClock(sent, response.Header.Get("polylock-clock"))
	if err != nil {
		response.Body.Close()
		return nil, err
	}
	opened := &stream{clock: clock, lines: bufio.NewScanner(response.Body), body: response.Body}
	for {
		next, err := nextLine(opened.lines, alive)
		if err != nil {
			response.Body.Close()
			return nil, &goneError{err}
		}
		switch next.Event {
		case "queued":
		case "failed":
			response.Body.Close()
			return nil, firstProblem(next.Problem).asError()
		default:
			opened.first = next
			return opened, nil
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
