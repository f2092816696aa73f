package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("testreport", flag.ContinueOnError)
	flags.SetOutput(stderr)
	path := flags.String("skips", "", "file of expected skips")
	strict := flags.Bool("strict", false, "fail on a skip that is not in the file")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var expected []skip
	if *path != "" {
		b, err := os.ReadFile(*path)
		if err == nil {
			expected, err = parseSkips(string(b))
		}
		if err != nil {
			fmt.Fprintf(stderr, "testreport: read expected skips: %v\n", err)
			return 2
		}
	}
	r := newReport(stdout)
	if err := r.read(stdin); err != nil {
		fmt.Fprintf(stderr, "testreport: %v\n", err)
		return 2
	}
	return r.finish(expected, *strict)
}
