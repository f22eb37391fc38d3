"""`python -m pretrain`, the same as the `pretrain` command."""

import sys

# Python looks for modules in the folder that this is started in first, which may be a run that somebody has given.
if not sys.flags.safe_path:
    del sys.path[0]

from pretrain.cli import main

if __name__ == "__main__":
    main()
