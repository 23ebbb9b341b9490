"""What keeps a busy engine useful: rate limiting at the door, overload protection behind it, one file per mechanism.

Rate limiting is *early*: it asks who sends, not how busy the engine is. Overload protection is *late*: it asks what is in
the engine, how fast that has lately been served, and whether one more request would still be served in time. The
metrics tell the two apart. `protection.py` puts together what the settings ask for; by default nothing is refused.
"""
