package polylock

import (
	"encoding/json"
	"os"
	"testing"
	"time"
)

// The deadlines of the vectors that all clients share.
func TestDeadlines(t *testing.T) {
	path := os.Getenv("POLYLOCK_VECTORS")
	if path == "" {
		path = "../vectors.json"
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Deadlines []struct {
			Clock, Until string
			LastsMs      int64 `json:"lasts_ms"`
			Error        bool
		}
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, vector := range vectors.Deadlines {
		clock, err := newServerClock(time.Time{}, vector.Clock)
		var lasts time.Duration
		if err == nil {
			lasts, err = clock.lasts(vector.Until)
		}
		if (err != nil) != vector.Error || lasts.Milliseconds() != vector.LastsMs {
			t.Errorf("%+v: %v, %v", vector, lasts, err)
		}
	}
}
