"""What is trained and how: training options, layout of rows and tensors, sharding, rounds, random streams."""
