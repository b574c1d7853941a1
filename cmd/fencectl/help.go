package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

const exitStatuses = `Exit status:
  0  all is well
  1  something is wrong: a FAIL, a mismatch, a transaction that hangs, a key
     that is not there, a dead letter that cannot be replayed
  2  the command line is wrong
  3  it could not be looked, or not all replayed: the cluster does not answer, or
     does not allow it, or the time was up
`

func help(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		writeHelp(stdout)
		return exitOK
	}
	c, ok := find(args[0])
	if !ok {
		fmt.Fprintf(stderr, "fencectl: there is no subcommand %q; fencectl help lists them\n", args[0])
		return exitUsage
	}
	c.writeHelp(stdout)
	return exitOK
}

func writeHelp(w io.Writer) {
	fmt.Fprint(w, `fencectl looks at what the persistence library keeps in Kafka. It changes
nothing and joins no group, save for redrive, which replays dead letters.

Usage: fencectl SUBCOMMAND [ARGUMENT] [OPTIONS]

`)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(t, "  %s\t%s\n", c.name, c.summary)
	}
	fmt.Fprint(t, "  help\thelp for a subcommand: fencectl help SUBCOMMAND\n")
	t.Flush()
	fmt.Fprint(w, "\nOptions of all subcommands:\n")
	command{}.writeOptions(w, func(o option) bool { return o.common })
	fmt.Fprint(w, "\n"+exitStatuses)
}

func (c command) writeHelp(w io.Writer) {
	fmt.Fprintf(w, "Usage: fencectl %s", c.name)
	if c.argument != "" {
		fmt.Fprintf(w, " %s", c.argument)
	}
	for _, name := range c.needs {
		fmt.Fprintf(w, " --%s %s", name, named(name).value)
	}
	fmt.Fprintf(w, " [OPTIONS]\n\n%s\n\nIts own options:\n", c.about)
	c.writeOptions(w, func(o option) bool { return !o.common && c.knows(o) })
	fmt.Fprint(w, "\nOptions of all subcommands:\n")
	c.writeOptions(w, func(o option) bool { return o.common })
	fmt.Fprint(w, "\n"+exitStatuses)
}

func (c command) knows(o option) bool {
	return o.common || slices.Contains(c.needs, o.name) || slices.Contains(c.takes, o.name)
}

func (c command) writeOptions(w io.Writer, which func(option) bool) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, o := range options {
		if which(o) {
			fmt.Fprintf(t, "  --%s %s\t%s\n", o.name, o.value, cmp.Or(c.usages[o.name], o.usage))
		}
	}
	t.Flush()
}
