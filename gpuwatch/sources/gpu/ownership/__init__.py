"""Which device belongs to which engine: who says so, in which order they are believed, and what follows."""
