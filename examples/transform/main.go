// Transform consumes, transforms and produces without state, exactly once: lines of
// text become orders, some of them in two topics, and what cannot be read goes to a
// dead-letter topic. One of two members is cut off in the middle.
//
// The service is in transform.go.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/examples/internal/stage"
)

const about = `Makes orders of lines of text while one of two members is cut off, and checks that
each line became what it must, once and in order. Takes some seconds in this
process, and up to 20 s on a real cluster, whose topics it deletes afterwards.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the program at once
	os.Exit(stage.Run(ctx, "transform", about, os.Args[1:], os.Stdout, os.Stderr, tell))
}

const (
	lines     = 4_000
	customers = 30
)

// line is the i-th line, its customer, and what must become of it.
func line(i int) (text, customer string, large, bad bool) {
	customer, amount := fmt.Sprint("customer-", i%customers), i*7%1000
	if i%101 == 50 {
		return fmt.Sprintf("%d,%s,a lot", i, customer), customer, false, true
	}
	return fmt.Sprintf("%d,%s,%d", i, customer, amount), customer, amount >= 900, false
}

func tell(ctx context.Context, s *stage.Stage) (string, error) {
	topics, err := s.Topics(ctx, "lines", "orders", "large-orders", "refused-lines")
	if err != nil {
		return "", err
	}
	svc := splitter{input: topics[0], orders: topics[1], large: topics[2], refused: topics[3]}
	group := s.Group("splitter")
	a := s.Start(ctx, "A", group, svc.input, svc.run)
	b := s.Start(ctx, "B", group, svc.input, svc.run)
	if err := b.Own(ctx); err != nil {
		return "", err
	}
	s.Say("%d lines come in", lines)
	var batch []*kgo.Record
	for i := range lines {
		text, customer, _, _ := line(i)
		if batch = append(batch, &kgo.Record{Topic: svc.input, Key: []byte(customer), Value: []byte(text)}); len(batch) == 100 {
			if err := s.Produce(ctx, batch...); err != nil {
				return "", err
			}
			batch = nil
		}
		if i == lines/2 {
			b.CutOff()
		}
	}
	if err := s.Settle(ctx, group, svc.input, a); err != nil {
		return "", err
	}
	s.Say("all is processed")
	if err := a.Stop(); err != nil {
		return "", err
	}
	b.Bury()

	var got [3]map[string][]int
	for i, topic := range []string{svc.orders, svc.large, svc.refused} {
		if got[i], err = ids(ctx, s, topic); err != nil {
			return "", err
		}
	}
	if err := audit(got); err != nil {
		return "", err
	}
	return fmt.Sprintf("lines=%d orders=%d large=%d refused=%d lost=0 duplicated=0 in_order=true", lines, count(got[0]), count(got[1]), count(got[2])), nil
}

// ids are the numbers of the lines that a topic's records came from, by customer, in
// the order of the log.
func ids(ctx context.Context, s *stage.Stage, topic string) (map[string][]int, error) {
	records, err := s.Read(ctx, topic)
	all := make(map[string][]int)
	for _, r := range records {
		var o order
		if json.Unmarshal(r.Value, &o) != nil { // a dead letter is a line
			number, _, _ := strings.Cut(string(r.Value), ",")
			if _, err := fmt.Sscan(number, &o.ID); err != nil {
				return nil, err
			}
		}
		all[string(r.Key)] = append(all[string(r.Key)], o.ID)
	}
	return all, err
}

func count(of map[string][]int) (n int) {
	for _, all := range of {
		n += len(all)
	}
	return n
}

// audit compares orders, large orders and refused lines with what they must be.
func audit(got [3]map[string][]int) error {
	want := [3]map[string][]int{{}, {}, {}}
	for i := range lines {
		_, customer, large, bad := line(i)
		switch {
		case bad:
			want[2][customer] = append(want[2][customer], i)
		case large:
			want[1][customer] = append(want[1][customer], i)
			fallthrough
		default:
			want[0][customer] = append(want[0][customer], i)
		}
	}
	for i, what := range []string{"orders", "large orders", "refused lines"} {
		for c := range customers {
			customer := fmt.Sprint("customer-", c)
			if fmt.Sprint(got[i][customer]) != fmt.Sprint(want[i][customer]) {
				return fmt.Errorf("the %s of %s are of lines %v, instead of %v", what, customer, got[i][customer], want[i][customer])
			}
		}
	}
	return nil
}
