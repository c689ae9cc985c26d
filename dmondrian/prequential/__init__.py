"""Rows that are predicted just before they are learned: all of them, a sample, the late ones."""
