"""One trainer: asks for work, pulls rows, computes, pushes."""
