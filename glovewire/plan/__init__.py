"""Predict epoch time, bottleneck and number of servers for a cluster."""
