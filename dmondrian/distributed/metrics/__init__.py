"""What forecasts were worth: progressive metrics, errors, reliability, curves."""
