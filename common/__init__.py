"""What server, worker, monitor and preprocess share; imports nothing else of ours."""
