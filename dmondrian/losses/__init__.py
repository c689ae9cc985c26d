"""Loss policies: what a node forecasts, and the price of a row there."""
