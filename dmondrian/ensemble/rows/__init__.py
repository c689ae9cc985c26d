"""Rows as trees take them: moved into the unit cube, written as boxes are."""
