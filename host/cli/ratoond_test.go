package cli_test

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/ratoon-project/ratoon/host/cli"
	"github.com/ratoon-project/ratoon/protocol"
)

// TestListenAdmin: the socket of a daemon that is gone is taken over, that of
// one that answers is not, whatever it is.
func TestListenAdmin(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"of another version": http.StatusNotFound, "of this version": http.StatusOK} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				fmt.Fprint(w, `{"api": 1}`)
			})}
			go srv.Serve(l)
			if _, err := cli.ListenAdmin(t.Context(), path, ""); protocol.CodeOf(err) != protocol.CodeBusy {
				t.Errorf("got %v, want %s", err, protocol.CodeBusy)
			}
			if err := srv.Close(); err != nil {
				t.Fatal(err)
			}
			mine, err := cli.ListenAdmin(t.Context(), path, "")
			if err != nil {
				t.Fatal(err)
			}
			mine.Close()
		})
	}
}
