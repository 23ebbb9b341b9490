"""A runner that computes nothing and takes as long as a device of a given profile would."""
