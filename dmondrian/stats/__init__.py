"""Stat policies: what a node remembers of the labels."""
