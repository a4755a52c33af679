"""The study: what is said about schedulers, each claim put to the test of runs and judged by a rule."""
