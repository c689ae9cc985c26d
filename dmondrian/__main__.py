"""`python -m dmondrian`: the `dmondrian` command without the console script."""

import sys

from dmondrian.cli.app import main

if __name__ == "__main__":  # worker processes import this module again; only the user's call runs
    sys.exit(main())
