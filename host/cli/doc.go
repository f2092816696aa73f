// Package cli is the ratoon command. Each subcommand is a constructor that
// binds flags to an options struct, and a function that does the work with
// them, which tests call. stdout is data, stderr is logs and progress.
package cli
