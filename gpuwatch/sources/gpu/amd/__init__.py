"""AMD devices through amdsmi. Not verified on hardware."""

from .library import AmdLibrary, is_there

__all__ = ["AmdLibrary", "is_there"]
