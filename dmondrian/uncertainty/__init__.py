"""Uncertainty of a forest: of a label, of its mean, of where rows lie."""
