"""A slow, obvious second implementation of AMF, and the sums it must equal."""
