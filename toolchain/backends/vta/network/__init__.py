"""Which layers of a network the array computes, and how their weights lie in memory."""
