package scenario

import "testing"

// Story is one thing that must hold on every kind of cluster.
type Story struct {
	Name string
	Tell func(w *World)
	// Partitions of the topics; 1 if not set.
	Partitions int32
	// Cleaner is set for a story that waits for the log cleaner.
	Cleaner bool
}

// Run tells all stories on a cluster, side by side.
func Run(t *testing.T, b Backend) {
	for _, s := range stories() {
		if s.Cleaner && !b.Cleaner {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Tell(NewWorld(t, b, max(s.Partitions, 1)))
		})
	}
}

func stories() []Story {
	var all []Story
	all = append(append(all, ownershipStories...), transactionStories...)
	all = append(append(all, recoveryStories...), topicStories...)
	all = append(all, mismatchStories()...)
	all = append(all, endingStories...)
	return all
}
