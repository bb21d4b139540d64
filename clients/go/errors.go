package polylock

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotAcquired means that another request holds the lock, and that the time to wait is over. This is no fault.
	ErrNotAcquired = errors.New("lock not acquired")
	// ErrUnavailable means that no server, or not its store, can be reached for the moment. A later attempt may succeed.
	ErrUnavailable = errors.New("lock service unavailable")
	// ErrLost means that the lock was held and is lost: stop the work that it protected.
	ErrLost = errors.New("lock lost")
	// ErrReleased means that the lock was released by this program.
	ErrReleased = errors.New("lock released")
)

// Problem is a refusal of a server (RFC 9457): correct the name, the settings or the rights.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Reason is the reason for the loss of a lock, as one word.
	Reason string `json:"reason"`
}

func (problem *Problem) Error() string {
	for _, text := range []string{problem.Detail, problem.Title} {
		if text != "" {
			return text
		}
	}
	return fmt.Sprintf("the server replied %d", problem.Status)
}

// lostError is [ErrLost] with its reason.
type lostError struct{ problem *Problem }

func (err *lostError) Error() string { return fmt.Sprintf("%v: %v", ErrLost, err.problem) }

func (err *lostError) Unwrap() error { return ErrLost }

// asError returns the error for a problem, by its remedy.
func (problem *Problem) asError() error {
	switch {
	case strings.HasSuffix(problem.Type, ":busy"):
		return fmt.Errorf("%w: %v", ErrNotAcquired, problem)
	case strings.HasSuffix(problem.Type, ":lost"):
		return &lostError{problem}
	case strings.HasSuffix(problem.Type, ":unavailable"), problem.Status == 429, problem.Status >= 502 && problem.Status <= 504:
		return fmt.Errorf("%w: %v", ErrUnavailable, problem)
	default:
		return problem
	}
}
