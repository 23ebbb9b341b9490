"""`python -m engine_shim`: see cli.py."""

from engine_shim.cli import main

if __name__ == "__main__":
    main(prog_name="python -m engine_shim")
