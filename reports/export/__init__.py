"""One file a format: what a run looks like to other tools."""
