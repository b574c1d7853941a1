package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var mechanisms = map[string]func(user, password string) sasl.Mechanism{
	"plain": func(user, password string) sasl.Mechanism {
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	},
	"scram-sha-256": func(user, password string) sasl.Mechanism {
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	},
	"scram-sha-512": func(user, password string) sasl.Mechanism {
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	},
}

// clientOptions are where the cluster is and how to log in.
func (s *settings) clientOptions() ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(s.brokers...), kgo.ClientID("fencectl"), kgo.DisableClientMetrics(),
		kgo.DialTimeout(min(s.timeout/3, 10*time.Second)),
	}
	if s.tls {
		c, err := s.tlsConfig()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(c))
	}
	if s.sasl != "" {
		opts = append(opts, kgo.SASL(mechanisms[s.sasl](s.saslUser, s.saslPassword)))
	}
	return opts, nil
}

// connect makes a client and sees whether a broker answers.
func connect(ctx context.Context, s *settings) (*kgo.Client, error) {
	opts, err := s.clientOptions()
	if err != nil {
		return nil, err
	}
	// It gives up before the time is up, so that it is told what failed.
	cl, err := kgo.NewClient(append(opts, kgo.RetryTimeout(s.timeout/2))...)
	if err != nil {
		return nil, &usageError{err}
	}
	if err := cl.Ping(ctx); err != nil {
		cl.Close()
		return nil, fmt.Errorf("no broker of %s can be talked to: %w", strings.Join(s.brokers, ","), err)
	}
	return cl, nil
}

func (s *settings) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{ServerName: s.tlsServerName}
	if s.tlsCA != "" {
		pem, err := os.ReadFile(s.tlsCA)
		if err != nil {
			return nil, &usageError{fmt.Errorf("--tls-ca: %w", err)}
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &usageError{fmt.Errorf("--tls-ca %q: there is no certificate in PEM form in it", s.tlsCA)}
		}
	}
	if s.tlsCert != "" {
		pair, err := tls.LoadX509KeyPair(s.tlsCert, s.tlsKey)
		if err != nil {
			return nil, &usageError{fmt.Errorf("--tls-cert %q, --tls-key %q: %w", s.tlsCert, s.tlsKey, err)}
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

var errNotAnswered = errors.New("the brokers' answer leaves it out")
