// Package protobuf keeps the state of a flow as a protobuf message. It is a module
// of its own, so that the library does not depend on protobuf; copy the one function
// into your service, or follow it for another encoding.
//
// A fold changes its message in place. A key without a state begins with a nil
// message, which can be read but not written to, so a fold makes one first:
//
//	if !k.Exists() {
//		k.State = new(pb.Account)
//	}
//
// Protobuf evolves by itself: a field that is added needs no new version of the
// codec, and a release that does not know it keeps it. A new version, with an
// upgrade from the one before, is for what protobuf cannot tell, such as a field
// whose unit changes. flow.ErrNewerSnapshot then keeps an older release from
// reading what it would misunderstand.
package protobuf

import (
	"google.golang.org/protobuf/proto"

	"github.com/kafkafence/persistence/flow"
)

// Codec is for states of type *M, a message that protoc-gen-go has generated. Its
// name in snapshots is "protobuf". Upgrades are as for flow.JSON.
//
// It is deterministic: one program writes equal states as equal bytes, also where
// messages have maps, whose order is random otherwise. So snapshots can be
// compared. Another build may write them differently.
func Codec[M any, P interface {
	*M
	proto.Message
}](version int, upgrades ...flow.Upgrade) flow.Codec[P] {
	marshal := proto.MarshalOptions{Deterministic: true}
	return flow.Using("protobuf", version,
		func(m P) ([]byte, error) { return marshal.Marshal(m) },
		func(data []byte) (P, error) {
			m := P(new(M))
			return m, proto.Unmarshal(data, m)
		}, upgrades...)
}
