"""What every process shares: errors, messages, sockets, files on disk. Imports none of the other packages."""
