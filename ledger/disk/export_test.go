package disk

// Staged is how many calls are in the group that waits for the one before it.
func (s *Store) Staged() int { return int(s.waiting.Load()) - len(s.queue) }
