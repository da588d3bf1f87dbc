"""Dense models: a client for models of your own, PyTorch and Thinc."""
