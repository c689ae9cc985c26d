"""The parameters of a forest, checked, and the policies that they choose."""
