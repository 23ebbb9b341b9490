"""From findings to incidents: their life, the one that no rule explains, and the verdict as JSON."""
