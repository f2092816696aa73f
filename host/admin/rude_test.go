package admin_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/admin"
)

// head is the head of a request with a body of a length; less than 0: in
// chunks.
func (o operation) head(t *testing.T, length int) string {
	t.Helper()
	out := o.method + " " + o.target(t) + " HTTP/1.1\r\nHost: x\r\n"
	if o.kind != "" {
		out += "Content-Type: " + o.kind + "\r\n"
	}
	if length < 0 {
		return out + "Transfer-Encoding: chunked\r\n\r\n"
	}
	return out + fmt.Sprintf("Content-Length: %d\r\n\r\n", length)
}

// halves are requests of every operation that stop half-way.
func halves(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{"nothing": "", "a word": "GET", "half a head": "GET /v1/version HTTP/1.1\r\nHost"}
	for _, o := range operations(t) {
		out[o.String()+", no body"] = o.head(t, 100)
		out[o.String()+", half a body"] = o.head(t, 100) + "{"
		out[o.String()+", no chunk"] = o.head(t, -1)
		out[o.String()+", half a chunk"] = o.head(t, -1) + "ff\r\n{"
	}
	out["no route"] = "POST /v2/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
	out["no method"] = "PATCH /v1/version HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
	return out
}

// began opens a connection and sends text on it.
func began(t *testing.T, socket, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// quiet waits until no more goroutines run than before.
func quiet(t *testing.T, before int) {
	t.Helper()
	for began := time.Now(); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			b := make([]byte, 1<<20)
			t.Fatalf("%d goroutines run, %d did before:\n%s", runtime.NumGoroutine(), before, b[:runtime.Stack(b, true)])
		}
	}
}

// TestSlowClients: one whose request never comes is answered, if there is
// something to answer, and cut.
func TestSlowClients(t *testing.T) {
	c, _ := serve(t, func(s *admin.Server) { s.SetWaits(100 * time.Millisecond) })
	files, goroutines := files(t), runtime.NumGoroutine()
	var all sync.WaitGroup
	for name, text := range halves(t) {
		conn := began(t, c.Socket(), text)
		all.Go(func() {
			defer conn.Close()
			conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			answers := bufio.NewReader(conn)
			if resp, err := http.ReadResponse(answers, nil); err == nil {
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" { // net/http's own, of what is no request
					typed(t, resp, b)
				}
			}
			if _, err := answers.ReadByte(); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
				t.Errorf("%s: %v, want the end of the connection", name, err)
			}
		})
	}
	all.Wait()
	settled(t, files)
	quiet(t, goroutines)
}

// TestDroppedClients: those that go in the middle leave nothing.
func TestDroppedClients(t *testing.T) {
	c, _ := serve(t)
	files, goroutines := files(t), runtime.NumGoroutine()
	for _, text := range halves(t) {
		began(t, c.Socket(), text).Close()
	}
	follow := "GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n"
	for range 50 {
		conn := began(t, c.Socket(), follow)
		if _, err := bufio.NewReader(conn).ReadString('{'); err != nil { // in the middle of the first element
			t.Fatal(err)
		}
		conn.Close()
		began(t, c.Socket(), follow).Close()
	}
	settled(t, files)
	quiet(t, goroutines)
}
