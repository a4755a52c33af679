"""The door of `bench`: Ctrl-C while the commands are still being imported ends it as quietly as later on."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and end the process."""
    try:
        from loadgen import cli
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    cli.main()


if __name__ == "__main__":
    main()
