package scenario

import "testing"

// Story is one thing that must hold on every kind of cluster.
type Story struct {
	Name string
	Tell func(w *World)
	// Partitions of the topics; 1 if not set.
	Partitions int32
}

// Run tells all stories on a cluster, side by side.
func Run(t *testing.T, b Backend) {
	for _, s := range stories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Tell(NewWorld(t, b, max(s.Partitions, 1)))
		})
	}
}

func stories() []Story {
	var all []Story
	all = append(all, ownershipStories...)
	return all
}
