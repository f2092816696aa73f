package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// treePath is what a running host answers on its socket: its sandbox's tree.
const treePath = "/v0/tree"

// serve answers questions about a running sandbox on a unix socket, for as
// long as its process owns the journal.
func serve(path string, sb *sandbox.Sandbox) (stop func(), err error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("open socket of this run: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+treePath, func(w http.ResponseWriter, r *http.Request) {
		tree, err := sb.Tree(r.Context())
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			json.NewEncoder(w).Encode(protocol.AsError(err))
			return
		}
		json.NewEncoder(w).Encode(tree)
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { srv.Serve(l) })
	return func() {
		srv.Close()
		serving.Wait()
	}, nil
}

// listen binds in the directory itself, since paths of sockets are short.
func listen(path string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the run directory goes as a whole
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// ask reads the tree of a running host; ok is false when none answers.
func ask(ctx context.Context, path string) (tree protocol.TreeResult, ok bool, err error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		var d net.Dialer
		return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://ratoon"+treePath, nil)
	if err != nil {
		return tree, false, err
	}
	resp, err := client.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return tree, false, nil
	}
	if err != nil {
		return tree, false, fmt.Errorf("ask the running host: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return tree, false, fmt.Errorf("ask the running host: %s", resp.Status)
	}
	return tree, true, json.NewDecoder(resp.Body).Decode(&tree)
}
