package main

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// keyFormat is how keys are read and shown.
type keyFormat string

var keyFormats = map[keyFormat]struct {
	parse func(string) ([]byte, error)
	show  func([]byte) string
}{
	"text": {func(s string) ([]byte, error) { return []byte(s), nil }, showText},
	"hex": {func(s string) ([]byte, error) {
		b, err := hex.DecodeString(s)
		if err != nil {
			return nil, errors.New("not hexadecimal, as --key-format hex says; two digits a byte are allowed")
		}
		return b, nil
	}, hex.EncodeToString},
	"base64": {func(s string) ([]byte, error) {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, errors.New("not base64, as --key-format base64 says; the standard alphabet with padding is allowed")
		}
		return b, nil
	}, base64.StdEncoding.EncodeToString},
}

func (f keyFormat) parse(s string) ([]byte, error) { return keyFormats[f].parse(s) }
func (f keyFormat) show(key []byte) string         { return keyFormats[f].show(key) }

// showText quotes what would spoil a terminal or a table.
func showText(key []byte) string {
	s := string(key)
	for _, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return strconv.Quote(s)
		}
	}
	return s
}
