"""Intel devices through Level Zero Sysman. Not verified on hardware."""

from .library import IntelLibrary, is_there

__all__ = ["IntelLibrary", "is_there"]
