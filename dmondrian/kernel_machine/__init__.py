"""Machines on the Mondrian kernel (B16): lifetimes searched, averaged over and on a grid."""
