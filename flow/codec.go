package flow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Codec turns a state into bytes and back. Its methods are called by several
// goroutines at once.
type Codec[S any] interface {
	// ID names the encoding, for example "json". It has no "/" and no spaces.
	ID() string
	// Version is that of the schema, from 1 on. It and the ID are written into
	// each snapshot's header "flow.codec", as "json/3".
	Version() int
	// Encode's result is the caller's.
	Encode(state S) ([]byte, error)
	// Decode reads what was written under this ID and a version from 1 to
	// Version. It may keep slices of data.
	Decode(data []byte, version int) (S, error)
}

// Upgrade turns what was written under one version into what the next one
// writes.
type Upgrade func(data []byte) ([]byte, error)

// JSON is a codec of encoding/json. Upgrades lead from version 1 to version, one
// step each; without any, older versions are decoded as they are, which suits
// fields that were added.
func JSON[S any](version int, upgrades ...Upgrade) Codec[S] {
	return Using("json", version, func(s S) ([]byte, error) { return json.Marshal(s) }, func(data []byte) (s S, err error) {
		err = json.Unmarshal(data, &s)
		return s, err
	}, upgrades...)
}

// Bytes is a codec of bytes as they are.
func Bytes() Codec[[]byte] {
	return Using("bytes", 1, func(s []byte) ([]byte, error) { return bytes.Clone(s), nil }, func(data []byte) ([]byte, error) { return bytes.Clone(data), nil })
}

// Using makes a codec of two functions, such as those of a protobuf message.
// Upgrades are as for JSON.
func Using[S any](id string, version int, encode func(S) ([]byte, error), decode func([]byte) (S, error), upgrades ...Upgrade) Codec[S] {
	return codec[S]{id: id, version: version, encode: encode, decode: decode, upgrades: upgrades}
}

type codec[S any] struct {
	id       string
	version  int
	encode   func(S) ([]byte, error)
	decode   func([]byte) (S, error)
	upgrades []Upgrade
}

func (c codec[S]) ID() string                 { return c.id }
func (c codec[S]) Version() int               { return c.version }
func (c codec[S]) Encode(s S) ([]byte, error) { return c.encode(s) }

func (c codec[S]) Decode(data []byte, version int) (S, error) {
	if len(c.upgrades) > 0 {
		for v := version; v < c.version; v++ {
			var err error
			if data, err = c.upgrades[v-1](data); err != nil {
				var none S
				return none, fmt.Errorf("upgrading from version %d to %d: %w", v, v+1, err)
			}
		}
	}
	return c.decode(data)
}

// check finds the faults of a codec.
func check[S any](c Codec[S]) error {
	if c == nil {
		return errors.New("Codec: required; use flow.JSON, flow.Bytes or flow.Using")
	}
	var faults []error
	if id := c.ID(); id == "" || strings.ContainsAny(id, "/ ") {
		faults = append(faults, fmt.Errorf("Codec: ID %q: a name without '/' and spaces is required", id))
	}
	if c.Version() < 1 {
		faults = append(faults, fmt.Errorf("Codec: version %d: at least 1 is allowed", c.Version()))
	}
	if own, ok := c.(codec[S]); ok && len(own.upgrades) > 0 && len(own.upgrades) != own.version-1 {
		faults = append(faults, fmt.Errorf("Codec: %d upgrades for version %d: %d are required, one for each step from version 1 on, or none",
			len(own.upgrades), own.version, max(own.version-1, 0)))
	}
	return errors.Join(faults...)
}

// ErrNewerSnapshot means that a snapshot was written under a version of the
// schema that this program does not know: a newer release wrote it. Nothing is
// changed; run that release, or teach this one the version.
var ErrNewerSnapshot = errors.New("a snapshot of a newer version than this program knows")

// ErrOtherCodec means that a snapshot was written by another codec.
var ErrOtherCodec = errors.New("a snapshot of another codec")

const codecHeader = "flow.codec"

func codecTag[S any](c Codec[S]) []byte { return fmt.Appendf(nil, "%s/%d", c.ID(), c.Version()) }

// versionOf reads a tag, and refuses what the codec cannot decode. A snapshot
// without one, of another program, is taken for version 1.
func versionOf[S any](c Codec[S], tag string) (int, error) {
	if tag == "" {
		return 1, nil
	}
	id, number, _ := strings.Cut(tag, "/")
	version, err := strconv.Atoi(number)
	switch {
	case err != nil || version < 1 || id != c.ID():
		return 0, fmt.Errorf("%w: it says %q, and this program writes %q", ErrOtherCodec, tag, codecTag(c))
	case version > c.Version():
		return 0, fmt.Errorf("%w: it says %q, and this program writes %q", ErrNewerSnapshot, tag, codecTag(c))
	}
	return version, nil
}
