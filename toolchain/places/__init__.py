"""Places of labs that somebody else keeps: which device one is, and that nobody else has it."""
