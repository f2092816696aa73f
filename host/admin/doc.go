// Package admin is the HTTP API of a daemon on its unix socket, and the client
// for it.
//
//	srv := admin.NewServer(d, admin.ServerOptions{Release: "1.0"})
//	err := srv.Serve(listener)                       // until Shutdown
//
//	c := admin.NewClient("/run/ratoon/ratoon.sock")
//	sb, err := c.Create(ctx, admin.CreateSandbox{Name: "web"})
//
// openapi.yaml is normative: every route, body and answer is in it, and tests
// hold the handlers to it. Bodies are JSON and strict: an unknown field is an
// error. Streams are newline-delimited JSON whose last element says how it
// ended, {"end": ...} or {"error": ...}; a stream without one was cut.
//
// An error is {"code", "message", "remedy", "details"} with a status that
// follows from the code. Requests that create something take an
// Idempotency-Key: the same key and request give the same answer.
//
// Who may open the socket may do everything. What a guest has made up - output,
// labels, names - is data in JSON here; who shows it escapes it.
package admin
