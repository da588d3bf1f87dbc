"""Write a run to a picture, to Prometheus or to TensorBoard."""
