"""Engine settings: the keys of [engine] and of the command line, checked before anything starts."""
