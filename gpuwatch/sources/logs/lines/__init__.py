"""Lines as they were written: unwrapped, repaired, without their prefixes, at their time."""
