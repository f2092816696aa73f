package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	quick, long bool
	out, state  string
	only        *regexp.Regexp
}

// pick is n, or quick in a quick run.
func (o options) pick(n, quick int) int {
	if o.quick {
		return quick
	}
	return n
}

// section measures some figures.
type section struct {
	name    string
	measure func(context.Context, *lab, *report) error
}

var sections = []section{
	{"pause", measurePause},
	{"slope", measureSlope},
	{"restore", measureRestore},
	{"link", measureLink},
	{"floor", measureFloor},
	{"branch", measureBranch},
	{"idle", measureIdle},
	{"sum", measureSum},
	{"many", measureMany},
}

func main() {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "fewer repetitions")
	flag.BoolVar(&o.long, "long", false, "also what takes minutes of waiting, and 64 children")
	flag.StringVar(&o.out, "o", "", "write the tables to this file (default: standard output)")
	flag.StringVar(&o.state, "state", "", "state directory (default: as for ratoon run)")
	only := flag.String("only", "", "regular expression of the sections to run")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench: takes no arguments")
		os.Exit(2)
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		fmt.Fprintln(os.Stderr, "bench: -only:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	l, err := openLab(ctx, o)
	if err != nil {
		return err
	}
	defer l.close()
	r := newReport("bench " + strings.Join(os.Args[1:], " "))
	if err := r.describe(ctx, l); err != nil {
		return err
	}
	var errs []error
	for _, s := range sections {
		if !o.only.MatchString(s.name) {
			continue
		}
		began := time.Now()
		l.say("%s", s.name)
		if err := s.measure(ctx, l, r); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err = fmt.Errorf("%s: %w", s.name, err)
			r.failed(s.name, err)
			errs = append(errs, err)
		}
		l.say("%s took %.0f s", s.name, time.Since(began).Seconds())
	}
	r.took = time.Since(r.began)
	if o.out == "" {
		_, err = os.Stdout.WriteString(r.markdown())
	} else {
		err = os.WriteFile(o.out, []byte(r.markdown()), 0o644)
	}
	return errors.Join(append(errs, err)...)
}
