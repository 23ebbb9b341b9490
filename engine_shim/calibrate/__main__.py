"""`python -m engine_shim.calibrate`: see command.py."""

from .command import main

if __name__ == "__main__":
    main()
