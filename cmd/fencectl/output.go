package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

// output writes results: as text, in tables and lines, or as JSON, one object a
// line. What fails is remembered until flush.
type output struct {
	json  bool
	w     *bufio.Writer
	table *tabwriter.Writer
}

func newOutput(w io.Writer, json bool) *output {
	buffered := bufio.NewWriter(w)
	return &output{json: json, w: buffered, table: tabwriter.NewWriter(buffered, 0, 8, 2, ' ', 0)}
}

// head begins a table.
func (o *output) head(columns ...any) {
	if !o.json {
		o.cells(columns)
	}
}

// row writes the object, or its cells in the table.
func (o *output) row(object any, cells ...any) {
	if o.json {
		o.object(object)
		return
	}
	o.cells(cells)
}

// line writes the object, or a line of text behind the table.
func (o *output) line(object any, format string, args ...any) {
	if o.json {
		o.object(object)
		return
	}
	o.text(format, args...)
}

// text writes a line of text that has no object.
func (o *output) text(format string, args ...any) {
	if o.json {
		return
	}
	o.table.Flush()
	fmt.Fprintf(o.w, format+"\n", args...)
}

func (o *output) object(v any) {
	// bufio remembers the error, and the objects have nothing that cannot be encoded.
	_ = json.NewEncoder(o.w).Encode(v)
}

// raw writes bytes as they are.
func (o *output) raw(b []byte) error {
	_, err := o.w.Write(b)
	return err
}

func (o *output) cells(cells []any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(o.table, "\t")
		}
		fmt.Fprint(o.table, c)
	}
	fmt.Fprintln(o.table)
}

func (o *output) flush() error {
	o.table.Flush()
	return o.w.Flush()
}

// number shows an offset, or that there is none.
func number(n int64) string {
	if n < 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func instant(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
