"""Where parameters live: on servers or in this machine's memory."""
