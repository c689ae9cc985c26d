"""Settings that are chosen from the first rows of a stream."""
