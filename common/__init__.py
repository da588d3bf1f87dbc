"""Code shared by server, worker, monitor and preprocess; imports no other package of Glovewire."""
