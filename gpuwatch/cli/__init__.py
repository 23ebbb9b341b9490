"""The command line: options and printing, no logic."""
