"""Memories where there are as many classes as in Stanford Online Products, on a CPU."""
