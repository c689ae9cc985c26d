"""Sets of boosted trees that are fitted to rows kept of a stream."""
