"""The golden server under a name like the others'; the product ships it for `bench doctor`."""

from loadgen.golden.server import main

if __name__ == "__main__":
    main()
