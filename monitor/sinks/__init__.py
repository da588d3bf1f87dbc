"""Write a run to a picture, Prometheus or TensorBoard."""
