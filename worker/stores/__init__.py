"""Give trainers access to the parameters, on servers or in this machine's memory."""
