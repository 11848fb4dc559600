//go:build soak

package main

import (
	"testing"
	"time"
)

// TestLongOutages is TestOutages with outages of a minute, longer than any request may wait.
func TestLongOutages(t *testing.T) { testOutages(t, time.Minute) }
