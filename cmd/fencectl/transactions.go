package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kafkafence/persistence"
)

var transactionsCommand = command{
	name:    "transactions",
	summary: "transactions that are open on the snapshot partitions, and how to end them",
	about: `Transactions that are open on the snapshot partitions, in the order of their
first records: the first of each partition is what holds its last stable offset,
and what a recovery waits for. HANGING ones are those that no coordinator will
ever end; the exit status is 1 then. Behind the table stands what can be done about the
first of each partition, with the command; for those behind it, run this again
afterwards.

With --prefix those are shown too that are under way for that service's
transactional ids without a record on the snapshot partitions yet (PARTITION is -
there): they hold the group's committed offset.`,
	needs: []string{"snapshots"},
	takes: []string{"prefix"},
	run:   transactions,
}

// transactionRow is an open transaction. Partition is -1 for one that has no
// record on a snapshot partition.
type transactionRow struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	persistence.OpenTransaction
	EndsByItself time.Time             `json:"ends_by_itself,omitzero"`
	Condition    persistence.Condition `json:"condition,omitempty"` // of the partition
	Advice       string                `json:"advice,omitempty"`
	Commands     []string              `json:"commands,omitempty"`
}

func transactions(ctx context.Context, s *session) error {
	_, partitions, err := s.partitionsOf(ctx, s.snapshots)
	if err != nil {
		return err
	}
	diagnoses, err := persistence.Diagnose(ctx, s.cl, s.snapshots, partitions...)
	if err != nil {
		return err
	}
	var rows []transactionRow
	var unknown []error
	hanging := false
	for _, d := range diagnoses {
		for i, open := range d.Transactions {
			row := transactionRow{Topic: d.Topic, Partition: d.Partition, OpenTransaction: open, EndsByItself: open.Expires()}
			if i == 0 {
				row.Condition, row.Advice, row.Commands = d.Condition, d.Advice, d.Commands
			}
			hanging = hanging || open.Hanging
			rows = append(rows, row)
		}
		for _, note := range d.Notes {
			unknown = append(unknown, fmt.Errorf("partition %d of topic %s: %s", d.Partition, d.Topic, note))
		}
		if d.Condition != persistence.Readable && len(d.Transactions) == 0 {
			unknown = append(unknown, fmt.Errorf("partition %d of topic %s: %v", d.Partition, d.Topic, d))
		}
	}
	if s.prefix != "" {
		elsewhere, err := s.withoutSnapshots(ctx, rows)
		if err != nil {
			unknown = append(unknown, err)
		}
		rows = append(rows, elsewhere...)
	}
	s.showTransactions(rows)
	for _, err := range unknown {
		s.note("%v", err)
	}
	switch {
	case hanging:
		return errWrong
	case len(unknown) > 0:
		return errors.New("not everything could be looked up")
	}
	return nil
}

func (s *session) showTransactions(rows []transactionRow) {
	if len(rows) == 0 {
		s.out.text("no transaction is open on %s", s.snapshots)
		return
	}
	s.out.head("PARTITION", "TRANSACTIONAL ID", "PRODUCER ID", "EPOCH", "COORDINATOR", "STATE", "FIRST OFFSET", "STARTED", "TIMEOUT", "ENDS BY ITSELF", "HANGING")
	for _, r := range rows {
		ends := instant(r.EndsByItself)
		if r.Hanging {
			ends = "never"
		}
		s.out.row(r, number(int64(r.Partition)), orDash(r.TransactionalID), r.ProducerID, r.ProducerEpoch, number(int64(r.Coordinator)), orDash(r.State),
			number(r.StartOffset), instant(r.Started), r.Timeout, ends, r.Hanging)
	}
	for _, r := range rows {
		if r.Advice == "" {
			continue
		}
		s.out.text("\npartition %d, %v. %s:", r.Partition, r.Condition, r.Advice)
		for _, c := range r.Commands {
			s.out.text("    %s", c)
		}
	}
}

// withoutSnapshots are the transactions under way for the service's ids that are
// not among those shown.
func (s *session) withoutSnapshots(ctx context.Context, shown []transactionRow) (rows []transactionRow, err error) {
	described, err := s.ofPrefix(ctx)
	for _, d := range described.Sorted() {
		at := snapshotPartition(s.prefix, d.TxnID)
		if !underWay(d) || at < 0 || s.partition >= 0 && at != s.partition ||
			slices.ContainsFunc(shown, func(r transactionRow) bool { return r.TransactionalID == d.TxnID }) {
			continue
		}
		open := persistence.OpenTransaction{ProducerID: d.ProducerID, ProducerEpoch: d.ProducerEpoch, CoordinatorEpoch: -1, StartOffset: -1,
			Coordinator: d.Coordinator, TransactionalID: d.TxnID, State: d.State, Timeout: time.Duration(d.TimeoutMillis) * time.Millisecond}
		if d.StartTimestamp > 0 {
			open.Started = time.UnixMilli(d.StartTimestamp)
		}
		rows = append(rows, transactionRow{Topic: s.snapshots, Partition: -1, OpenTransaction: open, EndsByItself: open.Expires()})
	}
	return rows, err
}

// ofPrefix describes what the coordinators know of transactional ids that begin
// with the prefix and a dash.
func (s *session) ofPrefix(ctx context.Context) (kadm.DescribedTransactions, error) {
	begin := s.prefix + "-"
	listed, err := s.adm.ListTransactionsByTxPattern(ctx, nil, nil, "^"+regexp.QuoteMeta(begin)+".*")
	if err != nil {
		return nil, fmt.Errorf("the transactional ids that begin with %s: %w", begin, err)
	}
	// Brokers before Kafka 4.1 list all.
	ids := slices.DeleteFunc(listed.TransactionalIDs(), func(id string) bool { return !strings.HasPrefix(id, begin) })
	if len(ids) == 0 { // none would mean all
		return nil, nil
	}
	described, err := s.adm.DescribeTransactions(ctx, ids...)
	if err != nil {
		err = fmt.Errorf("the states of the transactional ids that begin with %s: %w", begin, err)
	}
	return described, err
}

func underWay(d kadm.DescribedTransaction) bool {
	return slices.Contains([]string{"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}, d.State)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
