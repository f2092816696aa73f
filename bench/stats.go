package main

import (
	"slices"
	"time"
)

// sample is a set of durations.
type sample []time.Duration

// at is the quantile q by the nearest rank; 0 of an empty sample.
func (s sample) at(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (s sample) median() time.Duration { return s.at(0.5) }

// slope is that of the least-squares line through the points.
func slope(x, y []float64) float64 {
	n, sx, sy, sxx, sxy := float64(len(x)), 0.0, 0.0, 0.0, 0.0
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
