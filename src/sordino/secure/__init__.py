"""Sums over data owners of which nobody sees the parts."""
