"""What the commands do, each of them from its options to a report: `deploy` is where to begin to read."""
