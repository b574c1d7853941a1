package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settings are what the command line and the environment say.
type settings struct {
	brokers []string

	tls           bool
	tlsCA         string
	tlsCert       string
	tlsKey        string
	tlsServerName string

	sasl         string // empty: none
	saslUser     string
	saslPassword string
	passwordFile string

	timeout   time.Duration
	json      bool
	partition int32 // -1: all

	group              string
	input              string
	snapshots          string
	prefix             string
	transactionTimeout time.Duration
	limit              int // 0: none
	redrive            redriveSettings
	keyFormat          keyFormat
	key                []byte
}

// The environment variables that are read.
const (
	brokersVariable  = "KAFKA_BROKERS"
	passwordVariable = "FENCECTL_SASL_PASSWORD"
)

// option is a flag.
type option struct {
	name, value, usage string
	common             bool // all subcommands know it
	set                func(s *settings, value string) error
}

var options = []option{
	{"group", "GROUP", "the service's consumer group", false, text(func(s *settings) *string { return &s.group })},
	{"input", "TOPIC", "the input topic", false, text(func(s *settings) *string { return &s.input })},
	{"snapshots", "TOPIC", "the snapshot topic", false, text(func(s *settings) *string { return &s.snapshots })},
	{"prefix", "PREFIX", "the service's TransactionalIDPrefix", false, text(func(s *settings) *string { return &s.prefix })},
	{"transaction-timeout", "DURATION", "the service's TransactionTimeout (1m)", false, duration(func(s *settings) *time.Duration { return &s.transactionTimeout })},
	{"limit", "N", "show N keys at most (all)", false, positive(func(s *settings) *int { return &s.limit })},
	{"key-format", "FORMAT", "how keys are written: text, hex or base64 (text)", false, setKeyFormat},
	{"topic", "TOPIC", "the topic of the dead letters", false, text(func(s *settings) *string { return &s.redrive.topic })},
	{"match", "TEXT", "only letters whose exception message contains it (all)", false, text(func(s *settings) *string { return &s.redrive.match })},
	{"to", "TOPIC", "replay to this topic (the one that each event came from)", false, text(func(s *settings) *string { return &s.redrive.to })},
	{"max", "N", "replay N letters at most (all)", false, positive(func(s *settings) *int { return &s.redrive.max })},
	{"skip-malformed", "", "pass over letters whose headers are missing or malformed", false, truth(func(s *settings) *bool { return &s.redrive.skipMalformed })},
	{"dry-run", "", "show what would be replayed, and change nothing", false, truth(func(s *settings) *bool { return &s.redrive.dryRun })},

	{"partition", "N", "only this partition (all)", true, setPartition},
	{"brokers", "HOST:PORT,...", "where the cluster is ($" + brokersVariable + ", else localhost:9092)", true, setBrokers},
	{"timeout", "DURATION", "for the whole run (30s)", true, duration(func(s *settings) *time.Duration { return &s.timeout })},
	{"format", "FORMAT", "text, or json: one object a line (text)", true, setFormat},
	{"tls", "", "connect with TLS", true, truth(func(s *settings) *bool { return &s.tls })},
	{"tls-ca", "FILE", "trust the certificates in this PEM file only", true, text(func(s *settings) *string { return &s.tlsCA })},
	{"tls-cert", "FILE", "this client's certificate, PEM", true, text(func(s *settings) *string { return &s.tlsCert })},
	{"tls-key", "FILE", "its private key, PEM", true, text(func(s *settings) *string { return &s.tlsKey })},
	{"tls-server-name", "NAME", "the name in the brokers' certificates (their host)", true, text(func(s *settings) *string { return &s.tlsServerName })},
	{"sasl", "MECHANISM", "log in: plain, scram-sha-256 or scram-sha-512", true, setSASL},
	{"sasl-user", "NAME", "who logs in", true, text(func(s *settings) *string { return &s.saslUser })},
	{"sasl-password-file", "FILE", "the password's file (the password is in $" + passwordVariable + ")", true, text(func(s *settings) *string { return &s.passwordFile })},
}

func named(name string) option {
	return options[slices.IndexFunc(options, func(o option) bool { return o.name == name })]
}

func text(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, value string) error {
		if value == "" {
			return errors.New("must not be empty")
		}
		*field(s) = value
		return nil
	}
}

func duration(field func(*settings) *time.Duration) func(*settings, string) error {
	return func(s *settings, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return errors.New("only a duration above zero is allowed, such as 90s or 2m")
		}
		*field(s) = d
		return nil
	}
}

func positive(field func(*settings) *int) func(*settings, string) error {
	return func(s *settings, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return errors.New("only a number from 1 on is allowed")
		}
		*field(s) = n
		return nil
	}
}

func truth(field func(*settings) *bool) func(*settings, string) error {
	return func(s *settings, value string) (err error) {
		if *field(s), err = strconv.ParseBool(value); err != nil {
			return errors.New("only true and false are allowed, or the option alone")
		}
		return nil
	}
}

func setPartition(s *settings, value string) error {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 0 {
		return errors.New("only a partition's number is allowed, from 0 on")
	}
	s.partition = int32(n)
	return nil
}

func setBrokers(s *settings, value string) error {
	s.brokers = strings.Split(value, ",")
	if slices.Contains(s.brokers, "") {
		return errors.New("only HOST:PORT is allowed, several with commas between them")
	}
	return nil
}

func setFormat(s *settings, value string) error {
	if value != "text" && value != "json" {
		return errors.New("only text and json are allowed")
	}
	s.json = value == "json"
	return nil
}

func setKeyFormat(s *settings, value string) error {
	if _, ok := keyFormats[keyFormat(value)]; !ok {
		return errors.New("only text, hex and base64 are allowed")
	}
	s.keyFormat = keyFormat(value)
	return nil
}

func setSASL(s *settings, value string) error {
	if _, ok := mechanisms[value]; !ok {
		return errors.New("only plain, scram-sha-256 and scram-sha-512 are allowed")
	}
	s.sasl = value
	return nil
}

// usageError is a fault of the command line that shows only later.
type usageError struct{ error }

// parse reads a subcommand's arguments: options, before and after what is none.
// All faults are reported together.
func parse(c command, args []string) (*settings, error) {
	s := &settings{timeout: 30 * time.Second, transactionTimeout: time.Minute, partition: -1, keyFormat: "text",
		saslPassword: os.Getenv(passwordVariable)}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if err := setBrokers(s, cmp.Or(os.Getenv(brokersVariable), "localhost:9092")); err != nil {
		fault("$%s %q: %w", brokersVariable, os.Getenv(brokersVariable), err)
	}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	given := make(map[string]bool)
	for _, o := range options {
		if !c.knows(o) {
			continue
		}
		set := func(value string) error {
			given[o.name] = true
			if err := o.set(s, value); err != nil {
				fault("--%s %q: %w", o.name, value, err)
			}
			return nil
		}
		if o.value == "" {
			fs.BoolFunc(o.name, o.usage, set)
		} else {
			fs.Func(o.name, o.usage, set)
		}
	}
	var arguments []string
	strange := false
	for len(args) > 0 {
		err := fs.Parse(args)
		args = fs.Args()
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, err
		case err != nil: // a flag that is not known, or has no value
			strange = true
			fault("%w", err)
		case len(args) > 0:
			arguments, args = append(arguments, args[0]), args[1:]
		}
	}
	for _, name := range c.needs {
		if !given[name] {
			fault("--%s %s is required: %s", name, named(name).value, named(name).usage)
		}
	}
	if !strange { // else what follows a flag that is not known counts as an argument
		if err := s.setArguments(c, arguments); err != nil {
			faults = append(faults, err)
		}
	}
	faults = append(faults, s.checkTLS(given)...)
	faults = append(faults, s.checkSASL(given)...)
	return s, errors.Join(faults...)
}

func (s *settings) setArguments(c command, arguments []string) error {
	switch {
	case c.argument == "" && len(arguments) > 0:
		return fmt.Errorf("%q: no argument is allowed, only options", arguments)
	case c.argument == "":
		return nil
	case len(arguments) != 1:
		return fmt.Errorf("%q: exactly one %s is required; write one that begins with a dash after --", arguments, c.argument)
	case arguments[0] == "":
		return fmt.Errorf("%s %q: no snapshot has an empty key", c.argument, arguments[0])
	}
	var err error
	if s.key, err = s.keyFormat.parse(arguments[0]); err != nil {
		return fmt.Errorf("%s %q: %w", c.argument, arguments[0], err)
	}
	return nil
}

func (s *settings) checkTLS(given map[string]bool) (faults []error) {
	for _, name := range []string{"tls-ca", "tls-cert", "tls-key", "tls-server-name"} {
		if given[name] && !s.tls {
			faults = append(faults, fmt.Errorf("--%s: only with --tls", name))
		}
	}
	if given["tls-cert"] != given["tls-key"] {
		faults = append(faults, errors.New("--tls-cert and --tls-key: only both together are allowed"))
	}
	return faults
}

func (s *settings) checkSASL(given map[string]bool) (faults []error) {
	for _, name := range []string{"sasl-user", "sasl-password-file"} {
		if given[name] && !given["sasl"] {
			faults = append(faults, fmt.Errorf("--%s: only with --sasl", name))
		}
	}
	if s.sasl == "" {
		return faults
	}
	if !given["sasl-user"] {
		faults = append(faults, fmt.Errorf("--sasl %s: --sasl-user is required", s.sasl))
	}
	if s.passwordFile != "" {
		password, err := os.ReadFile(s.passwordFile)
		if err != nil {
			return append(faults, fmt.Errorf("--sasl-password-file: %w", err))
		}
		s.saslPassword = strings.TrimRight(string(password), "\r\n")
	}
	if s.saslPassword == "" {
		faults = append(faults, fmt.Errorf("--sasl %s: a password is required, in the file of --sasl-password-file or in $%s", s.sasl, passwordVariable))
	}
	return faults
}
