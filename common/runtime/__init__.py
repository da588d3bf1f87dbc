"""The process itself: compiled code, memory, signals, CPU affinity, procfs."""
