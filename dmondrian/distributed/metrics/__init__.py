"""Metrics of forecasts: progressive metrics, error histograms, reliability, learning curves."""
