"""Consistent cuts, checkpoint files, the writer thread, recovery generations, initial state."""
