"""The daemon: owns rows, applies pushes, leases blocks, publishes losses."""
