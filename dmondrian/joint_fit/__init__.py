"""Values of cells that are fitted over all trees together: ridge regression and mini-batches."""
