package admin

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/protocol"
)

// API is the version in the paths.
const API = 1

// Headers of requests and answers.
const (
	HeaderKey      = "Idempotency-Key"
	HeaderReplayed = "Idempotency-Replayed"
	HeaderRelease  = "Ratoon-Release"
)

const (
	// maxBody of a request that is not a stream.
	maxBody = 1 << 20
	// bodyWait is how long a client may take to send one, and each piece of one
	// that is a stream.
	bodyWait = 30 * time.Second
	maxKey   = 255
	// keyedBody is how much of a body that is a stream tells requests with the
	// same key apart.
	keyedBody = 64 << 10
)

//go:embed openapi.yaml
var openapi []byte

// ServerOptions of NewServer.
type ServerOptions struct {
	Release string
	// Audit is the file that gets a line for each request that may have changed
	// something; empty: none.
	Audit string
	Log   *slog.Logger
}

// Server serves one daemon.
type Server struct {
	d        *daemon.Daemon
	opt      ServerOptions
	http     *http.Server
	measured *metrics
	bodyWait time.Duration
	// ctx ends with Shutdown: streams end with it.
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// NewServer makes a server; it does no I/O.
func NewServer(d *daemon.Daemon, o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{d: d, opt: o, measured: newMetrics(d, o.Release), bodyWait: bodyWait}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return s.ctx }, ConnContext: withPeer, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug)}
	return s
}

// Serve serves until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the admin socket: %w", err)
	}
	return nil
}

// Shutdown ends streams and waits for requests until ctx ends, then cuts them.
func (s *Server) Shutdown(ctx context.Context) error {
	s.cancel(protocol.Errorf(protocol.CodeUnavailable, "the daemon is shutting down"))
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}

// route is one method of one path.
type route struct {
	method, path string
	query        string // parameters, with spaces between
	creates      bool   // takes an idempotency key
	endless      bool   // may be a stream that is followed
	stream       bool   // the body is read by the handler
	kind         string // of the body; empty: JSON
	serve        func(*Server, *request) error
}

// request is one request under way.
type request struct {
	*http.Request
	w    http.ResponseWriter
	body []byte // of a route that is no stream
}

func (s *Server) handler() http.Handler {
	paths := map[string]map[string]route{} // by method
	for _, r := range routes() {
		if paths[r.path] == nil {
			paths[r.path] = map[string]route{}
		}
		paths[r.path][r.method] = r
	}
	mux := http.NewServeMux()
	for path, methods := range paths {
		mux.HandleFunc(path, func(w http.ResponseWriter, q *http.Request) { s.dispatch(methods, w, q) })
	}
	none := func(w http.ResponseWriter, q *http.Request) { s.fail(w, http.StatusNotFound, s.noRoute(q.URL.Path)) }
	mux.HandleFunc("/", none)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set(HeaderRelease, s.opt.Release)
		if q.ContentLength != 0 {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyWait))
		}
		if p := q.URL.EscapedPath(); p != path.Clean(p) { // which the mux would redirect
			none(w, q)
			return
		}
		mux.ServeHTTP(w, q)
	})
}

// dispatch serves a request by the route of its method. The mux knows paths
// only: else import, for a method that it does not take, would be an id.
func (s *Server) dispatch(methods map[string]route, w http.ResponseWriter, q *http.Request) {
	method := q.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	r, ok := methods[method]
	if !ok {
		allowed := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
		w.Header().Set("Allow", allowed)
		s.fail(w, http.StatusMethodNotAllowed, protocol.Errorf(protocol.CodeInvalidArgument, "%.80q takes %s, not %.20q", q.URL.Path, allowed, q.Method))
		return
	}
	s.handle(r, w, q)
}

func (s *Server) handle(r route, w http.ResponseWriter, q *http.Request) {
	began := time.Now()
	rec := &recorder{ResponseWriter: w}
	defer func() {
		switch v := recover(); v {
		case nil:
		case http.ErrAbortHandler:
			defer panic(v) // the connection must not end as after a whole answer
		default:
			s.opt.Log.Error("request panicked", "route", r.path, "panic", v, "stack", string(debug.Stack()))
			if rec.status == 0 {
				s.fail(rec, http.StatusInternalServerError, protocol.Errorf(protocol.CodeInternal, "the request met a defect; the daemon's log has more"))
			}
		}
		s.measured.served(r, rec.status, time.Since(began))
		s.audit(q, rec.status, began)
		s.opt.Log.Debug("request", "method", q.Method, "path", q.URL.Path, "status", rec.status, "took", time.Since(began))
	}()
	if err := s.serveRoute(r, &request{Request: q, w: rec}); err != nil && rec.status == 0 {
		s.fail(rec, statusOf(err), err)
	}
}

func (s *Server) serveRoute(r route, q *request) error {
	if err := q.checkQuery(strings.Fields(r.query)); err != nil {
		return err
	}
	if err := q.checkKind(cmp.Or(r.kind, "application/json")); err != nil {
		return err
	}
	switch {
	case !r.stream:
		if err := q.readBody(); err != nil {
			return err
		}
	case r.endless:
		q.Body = &pieces{ReadCloser: q.Body, conn: http.NewResponseController(q.w)}
	default:
		q.Body = &pieces{q.Body, http.NewResponseController(q.w), s.bodyWait}
	}
	keys := q.Header.Values(HeaderKey)
	if !r.creates || len(keys) == 0 {
		return r.serve(s, q)
	}
	if n := len(keys[0]); len(keys) > 1 || n < 1 || n > maxKey {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s: want one, of 1 to %d characters", HeaderKey, maxKey)
	}
	return s.once(r, q, keys[0])
}

// once runs a request with an idempotency key. What it answers is kept, so it
// is no stream.
func (s *Server) once(r route, q *request, key string) error {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", q.Method, q.URL.RequestURI())
	h.Write(q.body)
	if r.stream {
		body := bufio.NewReaderSize(q.Body, keyedBody)
		head, _ := body.Peek(keyedBody) // who reads on meets the error
		h.Write(head)
		q.Body = io.NopCloser(body)
	}
	q.Header.Del("Accept")
	// The work goes on when the client goes: it may come back for the answer.
	q.Request = q.WithContext(s.ctx)
	a, again, err := s.d.Once(q.Context(), key, hex.EncodeToString(h.Sum(nil)), func() daemon.Answer {
		held := &holder{header: http.Header{}}
		if err := r.serve(s, &request{Request: q.Request, w: held, body: q.body}); err != nil {
			held.status = statusOf(err)
			held.body.Reset()
			json.NewEncoder(&held.body).Encode(toWire(err))
		}
		return daemon.Answer{Status: held.status, Body: held.body.Bytes()}
	}, func(a daemon.Answer) bool { return a.Status < 300 })
	if err != nil {
		return err
	}
	if again {
		q.w.Header().Set(HeaderReplayed, "true")
	}
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(a.Status)
	_, err = q.w.Write(a.Body)
	return err
}

// fail answers an error. The rest of the body is not waited for: its client may
// wait for the answer before it sends more.
func (s *Server) fail(w http.ResponseWriter, status int, err error) {
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyWait))
	w.Header().Set("Connection", "close")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(toWire(err))
}

// answer writes v.
func (q *request) answer(status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(status)
	_, err = q.w.Write(append(b, '\n'))
	return err
}

func (q *request) done() error {
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// recorder notes the status.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// holder keeps an answer instead of sending it.
type holder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (h *holder) Header() http.Header { return h.header }

// WriteHeader implements http.ResponseWriter.
func (h *holder) WriteHeader(status int) { h.status = status }

// Write implements http.ResponseWriter.
func (h *holder) Write(b []byte) (int, error) {
	if h.status == 0 {
		h.status = http.StatusOK
	}
	return h.body.Write(b)
}
