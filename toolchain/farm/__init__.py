"""A lab's devices, served to those who tune on them: a daemon that hands out boards, and its clients."""
