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
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
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
	// URLs are the servers, of which one is used until it fails.
	URLs []string
	// Token is the one of this caller, if the servers require one.
	Token string
	// Silence is the time without a line from a server after which a request that waits is sent to the next one: more than the five seconds between two
	// lines of a server.
	Silence time.Duration
	// HTTP sends the requests. It must have no time limit.
	HTTP *http.Client

	// The index of the server that has replied last.
	used   atomic.Int32
	clocks clocks
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

// serverURL returns the URL of a server with its port. The error does not contain the URL, which may have a password.
func serverURL(text string) (string, error) {
	parsed, err := url.Parse(text)
	isServer := err == nil && (parsed.Scheme == "http" || parsed.Scheme == "https") && parsed.Hostname() != "" && strings.Trim(parsed.Path, "/") == ""
	if !isServer || parsed.RawQuery != "" || parsed.Fragment != "" || parsed.User != nil {
		return "", errors.New("polylock: the URL of a lock service is http://host:port or https://host:port, without a path, a user or a query")
	}
	if parsed.Port() == "" {
		parsed.Host += ":7420"
	}
	return parsed.Scheme + "://" + parsed.Host, nil
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
	// Also are further locks: all of them are acquired, or none.
	Also []string
	// Owner and Label are shown to those that inspect the lock.
	Owner, Label string
}

// longestPause is the longest pause between two attempts while no server can be reached.
const longestPause = 2 * time.Second

// Acquire waits for the lock. It returns [ErrNotAcquired] if another request holds it and the time to wait is over, [ErrUnavailable] if no server can be reached, a
// [*Problem] for invalid settings, and the error of the context if that ends.
func (client *Client) Acquire(ctx context.Context, name string, options Options) (*Lock, error) {
	return client.acquire(ctx, name, options.Mode, "/v1/locks/"+url.PathEscape(name), options.body(), options.Wait)
}

// Campaign waits until this candidate leads in the election, without a limit, also while no server can be reached. Its term ends with the lock; end its work
// before another one leads.
func (client *Client) Campaign(ctx context.Context, name string, options Options) (*Lock, error) {
	options.Wait = 0
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		lock, err := client.Acquire(ctx, name, options)
		if !errors.Is(err, ErrUnavailable) {
			return lock, err
		}
		if pause > longestPause {
			pause = longestPause
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (options Options) body() map[string]any {
	body := texts(map[string]string{"mode": options.Mode, "owner": options.Owner, "label": options.Label})
	if options.TTL != 0 {
		body["ttl"] = milliseconds(options.TTL)
	}
	if options.Slots != 0 {
		body["slots"] = options.Slots
	}
	if len(options.Also) != 0 {
		body["also"] = options.Also
	}
	return body
}

// texts returns the settings that are not empty.
func texts(all map[string]string) map[string]any {
	body := map[string]any{}
	for key, text := range all {
		if text != "" {
			body[key] = text
		}
	}
	return body
}
