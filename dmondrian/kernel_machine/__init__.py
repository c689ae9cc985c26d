"""The Mondrian kernel (B16): columns, mini-batches, and exact fits at all lifetimes."""
