"""Compiled code, memory, /proc, signals and Ray."""
