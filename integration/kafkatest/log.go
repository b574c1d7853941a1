package kafkatest

import (
	"io"
	"os"
	"strings"
)

const (
	maxLog     = 256 << 10 // bytes that are returned of a log
	maxExcerpt = 30        // lines of each part of an excerpt
)

// A launchMark and the rack of that launch are written to a node's log before
// each run.
const launchMark = "---- launch of "

// latestRun cuts what earlier runs wrote from a log.
func latestRun(log string) string {
	return log[max(0, strings.LastIndex(log, launchMark)):]
}

// excerpt returns the first errors of the latest run and the end of the log: a
// broker that fails says a lot more after the reason while it shuts down.
func excerpt(log string) string {
	log = latestRun(log)
	if log == "" {
		return "\t(nothing)"
	}
	lines := strings.Split(strings.TrimRight(log, "\n"), "\n")
	split := max(0, len(lines)-maxExcerpt)
	var out []string
	for _, line := range lines[:split] {
		if len(out) == maxExcerpt {
			break
		}
		if strings.Contains(line, " ERROR ") || strings.Contains(line, " FATAL ") || isCause(line) {
			out = append(out, line)
		}
	}
	if len(out) > 0 {
		out = append(out, "...")
	}
	return indent(strings.Join(append(out, lines[split:]...), "\n"))
}

// isCause tells the head lines of a Java stack trace.
func isCause(line string) bool {
	if strings.HasPrefix(line, "Caused by: ") {
		return true
	}
	class, _, _ := strings.Cut(line, ":")
	return !strings.Contains(class, " ") && (strings.HasSuffix(class, "Exception") || strings.HasSuffix(class, "Error"))
}

func indent(s string) string { return "\t" + strings.ReplaceAll(s, "\n", "\n\t") }

// lastLines returns the end of s.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// readTail returns the last max bytes of a file from the start of a line, or ""
// if there is none.
func readTail(path string, max int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	start := size - min(size, max)
	b, err := io.ReadAll(io.NewSectionReader(f, start, size-start))
	if err != nil {
		return ""
	}
	s := string(b)
	if start > 0 {
		_, s, _ = strings.Cut(s, "\n")
	}
	return s
}
