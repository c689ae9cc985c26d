"""How sure a forest is: of a label, of its mean, of where rows lie."""
