"""Statistics that a run's figures rest on: pure functions of numpy arrays, each tested by coverage or brute
force.
"""
