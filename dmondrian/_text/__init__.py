"""Text for people and for files: counts and sizes, a line of progress."""
