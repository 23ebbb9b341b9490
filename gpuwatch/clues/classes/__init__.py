"""One file a class, or a few that share their picture: what short evidence speaks for it. Each has `clues(sighting)`."""
