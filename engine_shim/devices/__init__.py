"""Modelled devices: what each can do at best, and the condition that it is in."""
