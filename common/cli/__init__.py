"""The click command class, and the option definitions that several commands share."""
