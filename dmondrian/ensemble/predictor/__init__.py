"""Trees at rest, as flat arrays that predict faster and to the same last bit."""
