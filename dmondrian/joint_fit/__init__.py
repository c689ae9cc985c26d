"""Values of cells fitted over all trees together: ridge regression, mini-batches, sweeps."""
