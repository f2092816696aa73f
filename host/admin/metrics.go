package admin

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ratoon-project/ratoon/host/daemon"
)

// metrics are what a server tells Prometheus, on a registry of its own.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	handler  http.Handler
}

func newMetrics(d *daemon.Daemon, release string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ratoon_requests_total", Help: "Requests by route and status."}, []string{"method", "route", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "ratoon_request_seconds", Help: "Time of requests that are no streams, by route.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100}}, []string{"method", "route"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "ratoon_info", Help: "1, with the release.", ConstLabels: prometheus.Labels{"release": release}})
	info.Set(1)
	m.registry.MustRegister(m.requests, m.took, info, state{d}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return m
}

func (m *metrics) served(r route, status int, took time.Duration) {
	m.requests.WithLabelValues(r.method, r.path, strconv.Itoa(status)).Inc()
	if !r.endless {
		m.took.WithLabelValues(r.method, r.path).Observe(took.Seconds())
	}
}

// state reads what the daemon has when it is asked.
type state struct{ d *daemon.Daemon }

var (
	sandboxesDesc   = prometheus.NewDesc("ratoon_sandboxes", "Sandboxes by state.", []string{"state"}, nil)
	machinesDesc    = prometheus.NewDesc("ratoon_machines", "Running machines.", nil, nil)
	memoryDesc      = prometheus.NewDesc("ratoon_guest_memory_bytes", "Guest RAM of the running machines, as far as all of it were written.", nil, nil)
	checkpointsDesc = prometheus.NewDesc("ratoon_checkpoints", "Checkpoints by class.", []string{"class"}, nil)
	bytesDesc       = prometheus.NewDesc("ratoon_checkpoint_bytes", "Bytes of checkpoints by class.", []string{"class"}, nil)
)

// Describe implements prometheus.Collector.
func (s state) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, out) }

// Collect implements prometheus.Collector.
func (s state) Collect(out chan<- prometheus.Metric) {
	states := map[string]float64{"running": 0}
	machines, memory := 0.0, 0.0
	for _, sb := range s.d.Sandboxes() {
		info, err := sb.Info()
		if err != nil {
			continue
		}
		states[info.State]++
		machines += float64(info.Live)
		memory += float64(info.Live) * float64(info.MemoryBytes)
	}
	for st, n := range states {
		out <- prometheus.MustNewConstMetric(sandboxesDesc, prometheus.GaugeValue, n, st)
	}
	out <- prometheus.MustNewConstMetric(machinesDesc, prometheus.GaugeValue, machines)
	out <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, memory)
	all, err := s.d.Checkpoints()
	if err != nil {
		return
	}
	count, bytes := map[string]float64{"named": 0, "auto": 0}, map[string]float64{"named": 0, "auto": 0}
	for _, m := range all {
		count[string(m.Class)]++
		bytes[string(m.Class)] += float64(m.Bytes())
	}
	for class := range count {
		out <- prometheus.MustNewConstMetric(checkpointsDesc, prometheus.GaugeValue, count[class], class)
		out <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, bytes[class], class)
	}
}

func (s *Server) metrics(q *request) error {
	s.measured.handler.ServeHTTP(q.w, q.Request)
	return nil
}
