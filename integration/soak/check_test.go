package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sound are logs in which all is well: two keys, and input 13 is poison.
func sound() logs {
	return logs{
		inputs:       []input{{1, "a"}, {2, "b"}, {13, "a"}, {4, "a"}},
		outputs:      []output{{1, 1, "a"}, {2, 1, "b"}, {4, 2, "a"}},
		dead:         []int{13},
		states:       map[string]state{"a": {2, 4, 5}, "b": {1, 2, 2}},
		acknowledged: map[int]struct{}{1: {}, 4: {}},
	}
}

func TestTheCheckSeesEachFault(t *testing.T) {
	require.True(t, check(sound()).ok(), check(sound()).String())
	require.False(t, check(logs{}).ok(), "nothing proves nothing")
	for name, c := range map[string]struct {
		break_ func(l *logs)
		says   string
	}{
		"an output is missing":         {func(l *logs) { l.outputs = l.outputs[:2] }, "lost: input 4 of key a has 0 outputs"},
		"an output is there twice":     {func(l *logs) { l.outputs = append(l.outputs, output{2, 2, "b"}) }, "duplicated: input 2 of key b has 2 outputs"},
		"a dead letter is missing":     {func(l *logs) { l.dead = nil }, "lost: input 13 of key a has 0 outputs and 0 dead letters"},
		"a dead letter is there twice": {func(l *logs) { l.dead = append(l.dead, 13) }, "duplicated: input 13 of key a has 0 outputs and 2 dead letters"},
		"poison has an output":         {func(l *logs) { l.outputs = append(l.outputs, output{13, 3, "a"}) }, "duplicated: input 13"},
		"an input is a dead letter":    {func(l *logs) { l.dead = append(l.dead, 1) }, "duplicated: input 1"},
		"outputs are out of order":     {func(l *logs) { l.outputs[0], l.outputs[2] = l.outputs[2], l.outputs[0] }, "wrong: key a: the output that says 1 comes after the one that says 2"},
		"a count is wrong":             {func(l *logs) { l.outputs[2].count = 3 }, "wrong: input 4 of key a counts as 3"},
		"an output of nothing":         {func(l *logs) { l.outputs = append(l.outputs, output{99, 9, "a"}) }, "wrong: output of input 99"},
		"a state is wrong":             {func(l *logs) { l.states["a"] = state{1, 1, 1} }, "wrong: the state of key a is {Count:1"},
		"a state is missing":           {func(l *logs) { delete(l.states, "b") }, "wrong: the state of key b"},
		"a state of nothing":           {func(l *logs) { l.states["c"] = state{} }, "wrong: key c has a state"},
		"the cluster lost an input":    {func(l *logs) { l.acknowledged[7] = struct{}{} }, "wrong: input 7 was acknowledged"},
		"an input is there twice":      {func(l *logs) { l.inputs = append(l.inputs, input{1, "a"}) }, "wrong: input 1 is in the log twice"},
	} {
		t.Run(name, func(t *testing.T) {
			l := sound()
			c.break_(&l)
			v := check(l)
			require.False(t, v.ok())
			require.Contains(t, v.String(), c.says)
			require.Contains(t, v.String(), "\nfailed: inputs=")
		})
	}
	v := check(sound())
	v.ahead = []string{"offset 5"}
	require.False(t, v.ok())
}

// An offset is ahead if the effect was made after it was seen, or never.
func TestAnOffsetAheadOfItsEffectsIsSeen(t *testing.T) {
	now := time.Now()
	suspects := []suspect{{number: 1, committed: 9, at: now}, {number: 2, committed: 9, at: now}, {number: 3, committed: 9, at: now}, {number: 3, committed: 9, at: now}}
	found := ahead(suspects, map[int]time.Time{1: now.Add(-time.Second), 2: now.Add(time.Second)})
	require.Len(t, found, 2)
	require.Contains(t, found[0], "input 2 below it had no effect")
	require.Contains(t, found[1], "input 3 below it had no effect")
}
