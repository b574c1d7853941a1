package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What the credentials allow, as the brokers tell it: the operations of a topic or a
// group come as a set of bits, by ACL operation.

type operations []kmsg.ACLOperation

// missing are the names of those that the set does not have.
func (ops operations) missing(set int32) (names []string) {
	for _, op := range ops {
		if set&(1<<uint(op)) == 0 {
			names = append(names, op.String())
		}
	}
	return names
}

func (ops operations) String() string { return strings.Join(ops.missing(0), ", ") }

func (e *exam) access(ctx context.Context) {
	acls := kmsg.NewPtrDescribeACLsRequest()
	acls.ResourceType, acls.ResourcePatternType, acls.Operation, acls.PermissionType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny, kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	if resp, err := acls.RequestWith(ctx, e.cl); err == nil && errors.Is(kerr.ErrorForCode(resp.ErrorCode), kerr.SecurityDisabled) {
		e.tell("ACLs", ok, "", "the cluster has no authorizer: everything is allowed")
		return
	}
	read, write, describe := kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe
	e.topicAccess(ctx, e.input, operations{read, describe})
	e.topicAccess(ctx, e.snapshots, operations{read, write, describe, kmsg.ACLOperationDescribeConfigs})
	e.groupAccess(ctx, operations{read})
	e.idAccess(ctx)
}

func (e *exam) allowed(what string, need operations, set int32, err error) {
	missing := need.missing(set)
	switch {
	case err != nil:
		e.tell("ACLs of "+what, fail, fmt.Sprintf("Allow %v", need), "%v", err)
	case set == math.MinInt32:
		e.tell("ACLs of "+what, warn, fmt.Sprintf("See that %v are allowed", need), "the broker does not tell what is allowed")
	default:
		e.judge("ACLs of "+what, len(missing) == 0, fail, "Allow them", "needed: %v; missing: %s", need, orDash(strings.Join(missing, ", ")))
	}
}

func (e *exam) topicAccess(ctx context.Context, topic string, need operations) {
	r := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(topic)
	r.Topics = append(r.Topics, t)
	r.IncludeTopicAuthorizedOperations = true
	resp, err := r.RequestWith(ctx, e.cl)
	set := int32(math.MinInt32)
	if err == nil {
		err = errNotAnswered
		for _, t := range resp.Topics {
			set, err = t.AuthorizedOperations, kerr.ErrorForCode(t.ErrorCode)
		}
	}
	e.allowed("topic "+topic, need, set, err)
}

func (e *exam) groupAccess(ctx context.Context, need operations) {
	r := kmsg.NewPtrDescribeGroupsRequest()
	r.Groups, r.IncludeAuthorizedOperations = []string{e.group}, true
	resp, err := r.RequestWith(ctx, e.cl)
	set := int32(math.MinInt32)
	if err == nil {
		err = errNotAnswered
		for _, g := range resp.Groups {
			set, err = g.AuthorizedOperations, kerr.ErrorForCode(g.ErrorCode)
		}
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		err = nil // nobody has joined yet, and newer brokers tell nothing then
	}
	e.allowed("group "+e.group, need, set, err)
}

// idAccess asks for the state of a transactional id of the service: the only thing
// that can be asked without taking its producer's epoch. Write cannot be seen so.
func (e *exam) idAccess(ctx context.Context) {
	id := e.prefix + "-snapshot-0"
	what := "ACLs of TransactionalId " + e.prefix + "-snapshot-*"
	r := kmsg.NewPtrDescribeTransactionsRequest()
	r.TransactionalIDs = []string{id}
	resp, err := r.RequestWith(ctx, e.cl)
	if err == nil {
		err = errNotAnswered
		for _, t := range resp.TransactionStates {
			err = kerr.ErrorForCode(t.ErrorCode)
		}
	}
	switch {
	case err == nil, errors.Is(err, kerr.TransactionalIDNotFound):
		e.tell(what, ok, "", "Describe is allowed on %s; Write is needed too, which cannot be asked for", id)
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		e.tell(what, fail, "Allow Write and Describe", "%v", err)
	default:
		e.tell(what, warn, "See that Write and Describe are allowed", "not known: %v", err)
	}
}
