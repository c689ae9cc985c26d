"""The forest: an ensemble with its settings, as checked data, and merged with others."""
