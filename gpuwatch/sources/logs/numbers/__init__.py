"""Numbers that logs print, and what follows from them: rates, rises, silences."""
