//go:build soak

package main

import (
	"testing"
	"time"
)

// TestSoakOutages is TestOutages with outages of a minute, longer than any request may wait.
func TestSoakOutages(t *testing.T) { testOutages(t, time.Minute) }
