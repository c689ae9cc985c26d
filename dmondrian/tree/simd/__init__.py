"""Several features of a box and a row at once, in LLVM code; a twin in Python for each."""
