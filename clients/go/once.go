package polylock

import (
	"context"
	"net/url"
	"time"
)

// Job describes a job that runs once in each period, over all machines.
type Job struct {
	// Every is the period: a day by default.
	Every time.Duration
	// At is the begin of a period, as the time after midnight in UTC.
	At time.Duration
	// Retries is the number of further attempts in a period after one that has failed, or whose process has died.
	Retries int
	// TTL is the lease of the lock under which the job runs.
	TTL time.Duration
	// Wait is the longest time to wait while another process runs the job, as in [Options].
	Wait time.Duration
	// Owner and Label are shown to those that inspect the job.
	Owner, Label string
}

// Attempt is an attempt of a job that is due, under its lock. An attempt without an outcome counts as failed.
type Attempt struct {
	*Lock
	// Number is the number of the attempt in its period, from 1.
	Number int

	client *Client
}

// Once begins an attempt of the job, and returns nil if it is not due. It waits while another process runs the job. The errors are those of [Client.Acquire].
//
//	attempt, err := locks.Once(ctx, "nightly", polylock.Job{Every: 24 * time.Hour})
//	if attempt == nil {
//		return err
//	}
//	defer attempt.Release()
//	if err := work(attempt.Context(ctx)); err != nil {
//		return attempt.Failed(ctx, err.Error())
//	}
//	return attempt.Succeeded(ctx)
func (client *Client) Once(ctx context.Context, name string, job Job) (*Attempt, error) {
	body := texts(map[string]string{"owner": job.Owner, "label": job.Label})
	for key, time := range map[string]time.Duration{"every": job.Every, "at": job.At, "ttl": job.TTL} {
		if time != 0 {
			body[key] = milliseconds(time)
		}
	}
	body["retries"] = job.Retries
	lock, err := client.acquire(ctx, name, "", "/v1/jobs/"+url.PathEscape(name), body, job.Wait)
	if lock == nil {
		return nil, err
	}
	return &Attempt{Lock: lock, Number: lock.stream.first.Attempt, client: client}, nil
}

// Succeeded records the success. Call it before the release. It returns [ErrLost] if the lock is lost: the attempt then counts as failed.
func (attempt *Attempt) Succeeded(ctx context.Context) error {
	return attempt.record(ctx, "succeeded", "")
}

// Failed records the failure and its reason. Call it before the release.
func (attempt *Attempt) Failed(ctx context.Context, reason string) error {
	return attempt.record(ctx, "failed", reason)
}

func (attempt *Attempt) record(ctx context.Context, outcome, reason string) error {
	if err := attempt.EnsureHeld(); err != nil {
		return err
	}
	body := map[string]any{"fencing_token": attempt.FencingToken, "outcome": outcome, "reason": reason}
	return attempt.client.post(ctx, "/v1/jobs/"+url.PathEscape(attempt.Name)+"/outcome", body)
}
