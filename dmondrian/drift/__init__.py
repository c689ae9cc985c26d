"""Forests that follow a stream: trees of all ages, mixed by what they forecast."""
