"""Trees as arrays and the two loops over them; knows no concrete policy."""
