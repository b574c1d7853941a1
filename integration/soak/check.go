package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// isPoison says which inputs a fold refuses.
func isPoison(number int) bool { return number%97 == 13 }

// input is one record of the input log.
type input struct {
	number int
	key    string
}

// output says that an input was folded, and how many of its key had been.
type output struct {
	number int
	count  int
	key    string
}

// state is what a key's folds leave.
type state struct {
	Count int
	Last  int // input
	Sum   int
}

// fold is what members do with an input that is not poison.
func (s state) fold(number int) state {
	return state{Count: s.Count + 1, Last: number, Sum: s.Sum + number}
}

// logs are what a read_committed reader found in the end.
type logs struct {
	inputs       []input // each key's in order
	outputs      []output
	dead         []int
	states       map[string]state
	acknowledged map[int]struct{} // inputs that Kafka took
}

// verdict is what is wrong with it.
type verdict struct {
	inputs         int
	kills, pauses  int
	lost           []string // inputs whose output or dead letter is missing
	duplicated     []string // inputs with more than one
	wrong          []string // anything else
	ahead          []string // committed offsets ahead of what was persisted
	outputs, deads int
}

// check compares the logs with what a model makes of the input.
func check(l logs) verdict {
	v := verdict{inputs: len(l.inputs), outputs: len(l.outputs), deads: len(l.dead)}
	present := make(map[int]struct{}, len(l.inputs))
	outputs, dead := make(map[int][]output), make(map[int]int)
	for _, o := range l.outputs {
		outputs[o.number] = append(outputs[o.number], o)
	}
	for _, n := range l.dead {
		dead[n]++
	}
	model := make(map[string]state)
	for _, in := range l.inputs {
		if _, twice := present[in.number]; twice {
			v.wrong = append(v.wrong, fmt.Sprintf("input %d is in the log twice: the test's own producer made it", in.number))
		}
		present[in.number] = struct{}{}
		got, letters := outputs[in.number], dead[in.number]
		wantOutputs, wantLetters := 1, 0
		if isPoison(in.number) {
			wantOutputs, wantLetters = 0, 1
		} else {
			model[in.key] = model[in.key].fold(in.number)
		}
		what := fmt.Sprintf("input %d of key %s has %d outputs and %d dead letters", in.number, in.key, len(got), letters)
		switch {
		case len(got) < wantOutputs || letters < wantLetters:
			v.lost = append(v.lost, what)
		case len(got) > wantOutputs || letters > wantLetters:
			v.duplicated = append(v.duplicated, what)
		case wantOutputs == 1 && got[0].count != model[in.key].Count:
			v.wrong = append(v.wrong, fmt.Sprintf("input %d of key %s counts as %d, and it is the %d.", in.number, in.key, got[0].count, model[in.key].Count))
		}
	}
	for n := range l.acknowledged {
		if _, ok := present[n]; !ok {
			v.wrong = append(v.wrong, fmt.Sprintf("input %d was acknowledged and is not in the log: the cluster lost it", n))
		}
	}
	order := make(map[string]int)
	for _, o := range l.outputs {
		if _, ok := present[o.number]; !ok {
			v.wrong = append(v.wrong, fmt.Sprintf("output of input %d, which there is not", o.number))
		}
		if o.count <= order[o.key] {
			v.wrong = append(v.wrong, fmt.Sprintf("key %s: the output that says %d comes after the one that says %d", o.key, o.count, order[o.key]))
		}
		order[o.key] = o.count
	}
	for _, key := range slices.Sorted(maps.Keys(model)) {
		if got := l.states[key]; got != model[key] {
			v.wrong = append(v.wrong, fmt.Sprintf("the state of key %s is %+v, and its inputs make %+v", key, got, model[key]))
		}
	}
	for key := range l.states {
		if _, ok := model[key]; !ok {
			v.wrong = append(v.wrong, fmt.Sprintf("key %s has a state, and no inputs", key))
		}
	}
	return v
}

func (v verdict) ok() bool {
	return v.inputs > 0 && len(v.lost)+len(v.duplicated)+len(v.wrong)+len(v.ahead) == 0
}

// String is the last line, and what it is about.
func (v verdict) String() string {
	word := "ok"
	var b strings.Builder
	if !v.ok() {
		word = "failed"
		for _, found := range []struct {
			what string
			list []string
		}{{"lost", v.lost}, {"duplicated", v.duplicated}, {"wrong", v.wrong}, {"ahead", v.ahead}} {
			for i, line := range found.list {
				if i == 5 {
					fmt.Fprintf(&b, "%s: and %d more\n", found.what, len(found.list)-i)
					break
				}
				fmt.Fprintf(&b, "%s: %s\n", found.what, line)
			}
		}
	}
	fmt.Fprintf(&b, "%s: inputs=%d kills=%d lost=%d duplicated=%d wrong=%d ahead=%d outputs=%d dead=%d paused=%d",
		word, v.inputs, v.kills+v.pauses, len(v.lost), len(v.duplicated), len(v.wrong), len(v.ahead), v.outputs, v.deads, v.pauses)
	return b.String()
}
