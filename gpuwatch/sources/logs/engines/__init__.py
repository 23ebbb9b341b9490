"""What each engine writes into its log: the phrases that are looked for, and how each is read."""
