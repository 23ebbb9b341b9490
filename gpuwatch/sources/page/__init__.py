"""An engine's own pages: its metrics, read by dialect, and what it says about itself."""
